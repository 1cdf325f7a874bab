/* The functions of MPI behind those of this library. It defines their PMPI_* too, so that it cannot call them by their names. */

#define _GNU_SOURCE
#include "mpi_io.h"

#include <dlfcn.h>

void *next_function(const char *name) {
    return dlsym(RTLD_NEXT, name);
}
