! A Fortran program that knows nothing of pools: the processes write numbers one after the other, and read them.
!
!     numbers FILE
!
! It prints "well", or what is wrong. -DMODERN compiles it with the module mpi_f08, which has other names for its
! calls than mpif.h.
program numbers
#ifdef MODERN
  use mpi_f08
  implicit none
  type(MPI_File) :: file
  type(MPI_Datatype) :: view
  type(MPI_Request) :: request
  type(MPI_Status) :: status
#else
  implicit none
  include 'mpif.h'
  integer :: file, view, request, status(MPI_STATUS_SIZE)
#endif
  integer, parameter :: n = 1000
  integer :: rank, size, i, moved, code, kind
  integer :: mine(n), back(n), pair(2)
  integer(MPI_OFFSET_KIND) :: place, length
  logical :: is_atomic
  character(len=1000) :: name

  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
  call MPI_Comm_size(MPI_COMM_WORLD, size, code)
  call get_command_argument(1, name)
  mine = [(i * size + rank, i = 0, n - 1)]
  call MPI_Type_vector(n, 1, size, MPI_INTEGER, view, code)
  call MPI_Type_commit(view, code)

  call MPI_File_open(MPI_COMM_WORLD, trim(name) // '.missing', MPI_MODE_RDONLY, MPI_INFO_NULL, file, code)
  call MPI_Error_class(code, kind, i)
  if (kind /= MPI_ERR_NO_SUCH_FILE) print *, 'a missing file has the error class', kind
  call MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE + MPI_MODE_RDWR, MPI_INFO_NULL, file, code)
  if (code /= MPI_SUCCESS) print *, 'cannot open'
  place = 4 * rank
  call MPI_File_set_view(file, place, MPI_INTEGER, view, 'native', MPI_INFO_NULL, code)
  call MPI_File_write_all(file, mine, n, MPI_INTEGER, status, code)
  call MPI_Get_count(status, MPI_INTEGER, moved, code)
  if (moved /= n) print *, rank, 'wrote', moved
  call MPI_File_sync(file, code)
  call MPI_Barrier(MPI_COMM_WORLD, code)
  call MPI_File_get_size(file, length, code)
  if (length /= 4_MPI_OFFSET_KIND * n * size) print *, rank, 'finds bytes:', length
  place = 10
  call MPI_File_seek(file, place, MPI_SEEK_SET, code)
  call MPI_File_read_all_begin(file, back, n - 10, MPI_INTEGER, code)
  call MPI_File_read_all_end(file, back, status, code)
  if (any(back(: n - 10) /= mine(11 :))) print *, rank, 'reads something else'
  call MPI_File_set_atomicity(file, .true., code)
  call MPI_File_get_atomicity(file, is_atomic, code)
  if (.not. is_atomic) print *, rank, 'is not atomic'
  place = 5
  pair = [-1, -rank]
  call MPI_File_iwrite_at(file, place, pair, 2, MPI_INTEGER, request, code)
  call MPI_Wait(request, status, code)
  call MPI_File_read_at(file, place, back, 3, MPI_INTEGER, MPI_STATUS_IGNORE, code)
  if (any(back(: 3) /= [pair, mine(8)])) print *, rank, 'reads after its write', back(: 3)
  call MPI_File_close(file, code)
  if (code /= MPI_SUCCESS) print *, 'cannot close'
  if (rank == 0) then
    call MPI_File_open(MPI_COMM_SELF, trim(name) // '.short', MPI_MODE_CREATE + MPI_MODE_WRONLY, MPI_INFO_NULL, file, code)
    call MPI_File_close(file, code)
    call MPI_File_delete(trim(name) // '.short', MPI_INFO_NULL, code)
    if (code /= MPI_SUCCESS) print *, 'cannot delete'
  end if
  call MPI_Type_free(view, code)
  call MPI_Finalize(code)
  print '(a)', 'well'
end program numbers
