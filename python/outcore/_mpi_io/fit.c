/* Whether the parts of a job fit together: this library, the MPI of the program, its launcher, and liboutcore. */

#include "mpi_io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef OMPI_MAJOR_VERSION
#define FAMILY "Open MPI"
#define OTHERS "MPICH"
#else
#define FAMILY "MPICH"
#define OTHERS "Open MPI"
#endif

#define BUILD_AGAIN "run 'outcore env --mpi-io' again, with the mpicc of the program's MPI, and preload the file that it prints"

/* Ends a program that uses another MPI than the one that built this library: their handles differ, so that no call can work,
 * not even one that reports an error. */
void require_same_mpi(void) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int bytes = 0, major = 0, minor = 0;
    PMPI_Get_library_version(version, &bytes);
    PMPI_Get_version(&major, &minor);
    version[strcspn(version, "\n")] = '\0';
    if (strstr(version, OTHERS) == NULL && major == MPI_VERSION && minor == MPI_SUBVERSION) {
        return;
    }
    fprintf(stderr, "outcore: need a program of %s with MPI %d.%d, which built the library for MPI-IO, have '%s' with MPI %d.%d; %s\n",
            FAMILY, MPI_VERSION, MPI_SUBVERSION, version, major, minor, BUILD_AGAIN);
    exit(1);
}

/* Refuses a job whose launcher belongs to another MPI: then each process is alone in a world of its own. */
static int check_launcher(void) {
    static const char *const launchers[][2] = {
        {"PMI_SIZE", "mpiexec of MPICH"},
        {"OMPI_COMM_WORLD_SIZE", "mpirun of Open MPI"},
        {"MV2_COMM_WORLD_SIZE", "mpirun of MVAPICH"},
        {"SLURM_STEP_NUM_TASKS", "srun"},
    };
    int size = 0;
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    for (size_t i = 0; size == 1 && i < sizeof launchers / sizeof launchers[0]; i++) {
        const char *said = getenv(launchers[i][0]);
        if (said != NULL && atoi(said) > 1) {
            return failed(MPI_ERR_OTHER, "need processes that find each other, have %s of them from %s (%s), each of which is "
                                         "alone; start them by the launcher of the program's MPI",
                          said, launchers[i][1], launchers[i][0]);
        }
    }
    return 0;
}

int check_fit(void) {
    if (outcore_interface() != OUTCORE_INTERFACE) {
        return failed(MPI_ERR_OTHER, "need liboutcore with interface %d, have version %s with interface %d; " BUILD_AGAIN,
                      OUTCORE_INTERFACE, outcore_version(), outcore_interface());
    }
    return check_launcher();
}
