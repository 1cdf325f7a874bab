/* Calls of MPI-IO that move data, in all their variants. */

#include "mpi_io.h"

#include <stdlib.h>

/* The variants of a call. */
enum { WRITES = 1, EXPLICIT = 2, SHARED = 4, COLLECTIVE = 8 };

static int check(const struct open_file *file, int how, MPI_Offset offset, MPI_Count count, MPI_Datatype type,
                 MPI_Count *bytes) {
    const struct tree *one;
    *bytes = 0;
    if (count < 0) {
        return failed(MPI_ERR_COUNT, "need a count from 0 on, have %lld; pass another", (long long)count);
    }
    if (offset < 0) {
        return failed(MPI_ERR_ARG, "need an offset from 0 on, have %lld; pass another", (long long)offset);
    }
    int class = tree_of(file->comm, type, &one);
    if (class != 0 || ((how & WRITES) != 0 && (class = check_writable(file)) != 0)) {
        return class;
    }
    if ((how & WRITES) == 0 && (file->amode & MPI_MODE_WRONLY) != 0) {
        return failed(MPI_ERR_ACCESS, "need a file for reading, have one for writing; open it with MPI_MODE_RDWR");
    }
    if ((how & SHARED) == 0 && (class = check_pointer(file)) != 0) {
        return class;
    }
    if (__builtin_mul_overflow(one->bytes, count, bytes)) {
        return failed(MPI_ERR_ARG, "need fewer than 2^63 bytes; pass a smaller count");
    }
    if (file->view.etype_bytes > 0 && *bytes % file->view.etype_bytes != 0) {
        return failed(MPI_ERR_IO, "need whole elementary types of %lld bytes, have %lld bytes; pass another count",
                      (long long)file->view.etype_bytes, (long long)*bytes);
    }
    return 0;
}

/* Gets the places of all processes from the shared pointer, in the order of their ranks. */
static int ordered_place(struct open_file *file, MPI_Offset etypes, MPI_Offset *place) {
    MPI_Offset before = etypes, all = etypes, first = 0;
    int class = combine(file, BEFORE, 1, &before);
    if (class == 0) {
        class = combine(file, SUM, 1, &all);
    }
    if (class == 0 && file->rank == 0) {
        class = move_shared(file, all, &first);
    }
    class = agreed_most(file, class, &first);
    *place = first + before;
    return class;
}

/* Moves the bytes of one call. In a collective call, all processes have the same outcome. A nonblocking call has a job: it waits
 * for no other process, and `moved` becomes -1 if the job has begun. */
static int move(struct open_file *file, int how, struct job *job, MPI_Offset offset, void *memory, MPI_Count count,
                MPI_Datatype type, int64_t *moved) {
    MPI_Count bytes;
    int class = check(file, how, offset, count, type, &bytes), is_write = (how & WRITES) != 0;
    MPI_Offset etypes = file->view.etype_bytes > 0 ? bytes / file->view.etype_bytes : 0;
    int is_agreed = (how & COLLECTIVE) != 0 && job == NULL;
    *moved = 0;
    if (is_agreed && (how & SHARED) != 0 && (class = agreed(file, class)) != 0) {
        return class;
    }
    if (class == 0 && (how & SHARED) != 0) {
        class = (how & COLLECTIVE) != 0 ? ordered_place(file, etypes, &offset) : move_shared(file, etypes, &offset);
    } else if ((how & (SHARED | EXPLICIT)) == 0) {
        offset = file->pointer;
    }
    if (class == 0 && job != NULL && (how & SHARED) == 0) {
        class = access_of(file, offset, count, type, &job->access);
        job->file = file;
        job->handle = file->handle;
        job->is_write = is_write;
        job->memory = memory;
        *moved = class == 0 && start_job(file, job) ? -1 : 0;
    }
    if (is_agreed) {
        class = transfer_all(file, class, is_write, offset, memory, count, type, moved);
    } else if (class == 0 && *moved == 0) {
        if (bytes > 0) {
            finish_jobs(file);
        }
        class = transfer(file, is_write, offset, memory, count, type, moved);
    }
    if (class == 0 && (how & (SHARED | EXPLICIT)) == 0 && file->view.etype_bytes > 0) {
        int64_t passed = *moved < 0 ? bytes : *moved;
        file->pointer += (passed + file->view.etype_bytes - 1) / file->view.etype_bytes;
    }
    return class;
}

void set_status(MPI_Status *status, int64_t moved) {
    if (status != MPI_STATUS_IGNORE) {
        PMPI_Status_set_elements_x(status, MPI_BYTE, moved);
        PMPI_Status_set_cancelled(status, 0);
    }
}

static int is_in_split(const struct open_file *file) {
    if (!file->is_split) {
        return 0;
    }
    return failed(MPI_ERR_IO, "need the end of the split collective before; call its function with _end");
}

static int blocking(struct open_file *file, int how, MPI_Offset offset, void *memory, MPI_Count count, MPI_Datatype type,
                    MPI_Status *status) {
    int64_t moved = 0;
    int class = (how & COLLECTIVE) != 0 ? is_in_split(file) : 0;
    if (class == 0) {
        class = move(file, how, NULL, offset, memory, count, type, &moved);
    }
    if (class == 0) {
        set_status(status, moved);
    }
    return raise_error(file->handle, class);
}

/* The standard leaves open when the bytes move: by the thread of the file, or before this returns. */
static int nonblocking(struct open_file *file, int how, MPI_Offset offset, void *memory, MPI_Count count, MPI_Datatype type,
                       MPI_Request *request) {
    struct job *job = calloc(1, sizeof *job);
    int64_t moved;
    int class = job == NULL ? failed(MPI_ERR_NO_MEM, "need memory for a request; free some")
                            : move(file, how, job, offset, memory, count, type, &moved);
    *request = MPI_REQUEST_NULL;
    if (class != 0) {
        free(job);
        return raise_error(file->handle, class);
    }
    if (moved >= 0) {
        job->moved = moved;
        complete_job(job);
    }
    *request = job->request;
    return MPI_SUCCESS;
}

static int split_begin(struct open_file *file, int how, MPI_Offset offset, void *memory, MPI_Count count, MPI_Datatype type) {
    int64_t moved = 0;
    int class = is_in_split(file);
    if (class == 0) {
        class = move(file, how, NULL, offset, memory, count, type, &moved);
    }
    if (class == 0) {
        set_status(&file->split_status, moved);
        file->is_split = how + 1;
    }
    return raise_error(file->handle, class);
}

static int split_end(struct open_file *file, int how, MPI_Status *status) {
    if (file->is_split != how + 1) {
        return raise_error(file->handle, failed(MPI_ERR_IO, "need a split collective of the same kind that has begun; call its "
                                                            "function with _begin"));
    }
    file->is_split = 0;
    if (status != MPI_STATUS_IGNORE) {
        *status = file->split_status;
    }
    return MPI_SUCCESS;
}

/* The definitions. */

#define DEFINE_AT(name, how, BUFFER, COUNT)                                                                               \
    int MPI_File_##name(MPI_File fh, MPI_Offset offset, BUFFER buf, COUNT count, MPI_Datatype type, MPI_Status *status) { \
        FILE_OR_PASS(MPI_File_##name, (fh, offset, buf, count, type, status))                                             \
        return blocking(file, (how) | EXPLICIT, offset, (void *)buf, count, type, status);                                \
    }                                                                                                                     \
    BOTH_NAMES(MPI_File_##name)

#define DEFINE_NEXT(name, how, BUFFER, COUNT)                                                          \
    int MPI_File_##name(MPI_File fh, BUFFER buf, COUNT count, MPI_Datatype type, MPI_Status *status) { \
        FILE_OR_PASS(MPI_File_##name, (fh, buf, count, type, status))                                  \
        return blocking(file, how, 0, (void *)buf, count, type, status);                               \
    }                                                                                                  \
    BOTH_NAMES(MPI_File_##name)

#define DEFINE_START_AT(name, how, BUFFER, COUNT)                                                                           \
    int MPI_File_##name(MPI_File fh, MPI_Offset offset, BUFFER buf, COUNT count, MPI_Datatype type, MPI_Request *request) { \
        FILE_OR_PASS_AT_ONCE(MPI_File_##name, (fh, offset, buf, count, type, request))                                      \
        return nonblocking(file, (how) | EXPLICIT, offset, (void *)buf, count, type, request);                              \
    }                                                                                                                       \
    BOTH_NAMES(MPI_File_##name)

#define DEFINE_START_NEXT(name, how, BUFFER, COUNT)                                                      \
    int MPI_File_##name(MPI_File fh, BUFFER buf, COUNT count, MPI_Datatype type, MPI_Request *request) { \
        FILE_OR_PASS_AT_ONCE(MPI_File_##name, (fh, buf, count, type, request))                           \
        return nonblocking(file, how, 0, (void *)buf, count, type, request);                             \
    }                                                                                                    \
    BOTH_NAMES(MPI_File_##name)

#define DEFINE_BEGIN_AT(name, how, BUFFER, COUNT)                                                     \
    int MPI_File_##name(MPI_File fh, MPI_Offset offset, BUFFER buf, COUNT count, MPI_Datatype type) { \
        FILE_OR_PASS(MPI_File_##name, (fh, offset, buf, count, type))                                 \
        return split_begin(file, (how) | EXPLICIT, offset, (void *)buf, count, type);                 \
    }                                                                                                 \
    BOTH_NAMES(MPI_File_##name)

#define DEFINE_BEGIN_NEXT(name, how, BUFFER, COUNT)                                \
    int MPI_File_##name(MPI_File fh, BUFFER buf, COUNT count, MPI_Datatype type) { \
        FILE_OR_PASS(MPI_File_##name, (fh, buf, count, type))                      \
        return split_begin(file, how, 0, (void *)buf, count, type);                \
    }                                                                              \
    BOTH_NAMES(MPI_File_##name)

#define DEFINE_END(name, how, BUFFER)                                  \
    int MPI_File_##name(MPI_File fh, BUFFER buf, MPI_Status *status) { \
        FILE_OR_PASS(MPI_File_##name, (fh, buf, status))               \
        return split_end(file, how, status);                           \
    }                                                                  \
    BOTH_NAMES(MPI_File_##name)

#define DEFINE_ALL(verb, how, BUFFER, SUFFIX, COUNT)                                \
    DEFINE_AT(verb##_at##SUFFIX, how, BUFFER, COUNT)                                \
    DEFINE_AT(verb##_at_all##SUFFIX, (how) | COLLECTIVE, BUFFER, COUNT)             \
    DEFINE_NEXT(verb##SUFFIX, how, BUFFER, COUNT)                                   \
    DEFINE_NEXT(verb##_all##SUFFIX, (how) | COLLECTIVE, BUFFER, COUNT)              \
    DEFINE_NEXT(verb##_shared##SUFFIX, (how) | SHARED, BUFFER, COUNT)               \
    DEFINE_NEXT(verb##_ordered##SUFFIX, (how) | SHARED | COLLECTIVE, BUFFER, COUNT) \
    DEFINE_START_AT(i##verb##_at##SUFFIX, how, BUFFER, COUNT)                       \
    DEFINE_START_AT(i##verb##_at_all##SUFFIX, (how) | COLLECTIVE, BUFFER, COUNT)    \
    DEFINE_START_NEXT(i##verb##SUFFIX, how, BUFFER, COUNT)                          \
    DEFINE_START_NEXT(i##verb##_all##SUFFIX, (how) | COLLECTIVE, BUFFER, COUNT)     \
    DEFINE_START_NEXT(i##verb##_shared##SUFFIX, (how) | SHARED, BUFFER, COUNT)      \
    DEFINE_BEGIN_AT(verb##_at_all_begin##SUFFIX, (how) | COLLECTIVE, BUFFER, COUNT) \
    DEFINE_BEGIN_NEXT(verb##_all_begin##SUFFIX, (how) | COLLECTIVE, BUFFER, COUNT)  \
    DEFINE_BEGIN_NEXT(verb##_ordered_begin##SUFFIX, (how) | SHARED | COLLECTIVE, BUFFER, COUNT)

#define DEFINE_ENDS(verb, how, BUFFER)                                   \
    DEFINE_END(verb##_at_all_end, (how) | COLLECTIVE | EXPLICIT, BUFFER) \
    DEFINE_END(verb##_all_end, (how) | COLLECTIVE, BUFFER)               \
    DEFINE_END(verb##_ordered_end, (how) | SHARED | COLLECTIVE, BUFFER)

DEFINE_ALL(read, 0, void *, , int)
DEFINE_ALL(write, WRITES, const void *, , int)
DEFINE_ENDS(read, 0, void *)
DEFINE_ENDS(write, WRITES, const void *)
#if MPI_VERSION >= 4
DEFINE_ALL(read, 0, void *, _c, MPI_Count)
DEFINE_ALL(write, WRITES, const void *, _c, MPI_Count)
#endif
