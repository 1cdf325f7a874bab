/* Accesses of all processes of a file together. This is the only place that knows how they move their bytes: each process sends
 * requests of its own, and then all agree on the outcome. */

#include "mpi_io.h"

int transfer_all(struct open_file *file, int is_write, MPI_Offset offset, void *memory, MPI_Count count, MPI_Datatype type,
                 int64_t *moved) {
    return agreed(file, transfer(file, is_write, offset, memory, count, type, moved));
}
