/* One process of a job of pairs. The second process of each pair dies inside a call of MPI-IO, and the first one prints the
 * call's result.
 *
 * Run it as `dies_inside URL FOLDER CALL:FUNCTION:COUNT...`, with a case for each pair: in CALL, the second process dies before it
 * calls FUNCTION for the time COUNT. With `MPI_Finalize`, it calls that instead of CALL. The results are files in the folder, named
 * for the pairs. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <outcore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char function[64];
static int left; /* calls of it before the death, none if it is 0 */

static void die_before(const char *name) {
    if (left > 0 && strcmp(name, function) == 0 && --left == 0) {
        kill(getpid(), SIGKILL);
    }
}

/* Defines a function before those of the libraries. */
#define BEFORE(name, parameters, arguments)                         \
    int name parameters {                                           \
        die_before(#name);                                          \
        return ((__typeof__(&name))dlsym(RTLD_NEXT, #name)) arguments; \
    }

BEFORE(PMPI_Comm_idup, (MPI_Comm comm, MPI_Comm *made, MPI_Request *request), (comm, made, request))
BEFORE(PMPI_Ibcast, (void *memory, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request),
       (memory, n, type, root, comm, request))
BEFORE(PMPI_Iallreduce, (const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *request),
       (from, to, n, type, op, comm, request))
BEFORE(PMPI_Iexscan, (const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *request),
       (from, to, n, type, op, comm, request))
BEFORE(outcore_file_write_all,
       (const outcore_file *file, const outcore_group *group, const outcore_regions *regions, const void *memory, uint64_t bytes,
        outcore_exchange *exchange),
       (file, group, regions, memory, bytes, exchange))
BEFORE(outcore_file_read_all,
       (const outcore_file *file, const outcore_group *group, const outcore_regions *regions, void *memory, uint64_t bytes,
        outcore_exchange *exchange),
       (file, group, regions, memory, bytes, exchange))
BEFORE(outcore_remove, (const outcore_pool *pool, const char *path), (pool, path))

static int open_it(MPI_Comm comm, const char *path, MPI_File *file) {
    return MPI_File_open(comm, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, file);
}

static int call(const char *name, MPI_Comm comm, const char *path, MPI_File *file) {
    char memory[100] = {0};
    int code;
    if (strcmp(name, "open") == 0 || strcmp(name, "open again") == 0) {
        return open_it(comm, path, file);
    } else if (strcmp(name, "close") == 0) {
        return MPI_File_close(file);
    } else if (strcmp(name, "write_all") == 0) {
        return MPI_File_write_all(*file, memory, 100, MPI_BYTE, MPI_STATUS_IGNORE);
    } else if (strcmp(name, "read_all") == 0) {
        return MPI_File_read_all(*file, memory, 100, MPI_BYTE, MPI_STATUS_IGNORE);
    } else if (strcmp(name, "set_size") == 0) {
        return MPI_File_set_size(*file, 10);
    } else if (strcmp(name, "write_ordered") == 0) {
        return MPI_File_write_ordered(*file, memory, 100, MPI_BYTE, MPI_STATUS_IGNORE);
    } else if (strcmp(name, "read_ordered_begin") == 0) {
        return MPI_File_read_ordered_begin(*file, memory, 100, MPI_BYTE);
    }
    /* A call of one process: repeated until the other one has died in its turn. */
    while ((code = MPI_File_write_shared(*file, memory, 100, MPI_BYTE, MPI_STATUS_IGNORE)) == MPI_SUCCESS) {
    }
    return code;
}

/* Ends MPI, which waits for all processes, until the other process of the pair has its result. */
static void end_mpi(const char *result) {
    pid_t parent = getpid();
    if (fork() == 0) {
        while (access(result, F_OK) != 0) {
            usleep(10000);
        }
        kill(parent, SIGKILL);
        _exit(0);
    }
    MPI_Finalize();
}

int main(int argc, char **argv) {
    int rank, class = MPI_SUCCESS, length = 0;
    char name[64], path[4096], made[4096], result[4096], text[MPI_MAX_ERROR_STRING] = "";
    MPI_File file = MPI_FILE_NULL;
    MPI_Comm comm;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int pair = rank / 2, dies = rank % 2, count = 0;
    MPI_Comm_split(MPI_COMM_WORLD, pair, rank, &comm);
    snprintf(path, sizeof path, "%sf%d", argv[1], pair);
    if (sscanf(argv[3 + pair], "%63[^:]:%63[^:]:%d", name, function, &count) != 3) {
        return 1;
    }
    if (strcmp(name, "open") != 0) {
        /* Something to read. */
        open_it(comm, path, &file);
        MPI_File_write_at_all(file, 0, path, 100, MPI_BYTE, MPI_STATUS_IGNORE);
    }
    snprintf(result, sizeof result, "%s/%d", argv[2], pair);
    if (dies && strcmp(function, "MPI_Finalize") == 0) {
        end_mpi(result);
    }
    left = dies ? count : 0;
    int code = call(name, comm, path, &file);
    if (code != MPI_SUCCESS) {
        MPI_Error_class(code, &class);
        MPI_Error_string(code, text, &length);
    }
    snprintf(made, sizeof made, "%s/.%d", argv[2], rank);
    FILE *out = fopen(made, "w");
    fprintf(out, "%s: %s", dies ? "alive" : class == MPI_ERR_IO ? "MPI_ERR_IO" : "no MPI_ERR_IO", text);
    fclose(out);
    rename(made, result);
    /* MPI_Finalize would wait for the dead processes. */
    _exit(0);
}
