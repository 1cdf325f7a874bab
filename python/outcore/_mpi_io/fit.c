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

/* The variable in which a launcher leaves the number of processes, and the launcher; NULL if no launcher has started several. */
static const char *const *find_launcher(void) {
    static const char *const launchers[][2] = {
        {"PMI_SIZE", "mpiexec of MPICH"},
        {"OMPI_COMM_WORLD_SIZE", "mpirun of Open MPI"},
        {"MV2_COMM_WORLD_SIZE", "mpirun of MVAPICH"},
        {"SLURM_STEP_NUM_TASKS", "srun"},
    };
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const char *said = getenv(launchers[i][0]);
        if (said != NULL && atoi(said) > 1) {
            return launchers[i];
        }
    }
    return NULL;
}

#define FIND_EACH_OTHER \
    "need processes that find each other, have %s of them from %s (%s), %s; start them by the launcher of the program's MPI"

/* Refuses a job whose launcher belongs to another MPI: then each process is alone in a world of its own. */
static int check_launcher(void) {
    const char *const *launcher = find_launcher();
    int size = 0;
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size > 1 || launcher == NULL) {
        return 0;
    }
    return failed(MPI_ERR_OTHER, FIND_EACH_OTHER, getenv(launcher[0]), launcher[1], launcher[0], "each of which is alone");
}

/* MPI is starting. MPICH 5 ends a process then that the launcher of another MPI has started. */
static int is_starting;

static void say_launcher(void) {
    const char *const *launcher = find_launcher();
    if (is_starting && launcher != NULL && strstr(launcher[1], FAMILY) == NULL) {
        fprintf(stderr, "outcore: " FIND_EACH_OTHER "\n", getenv(launcher[0]), launcher[1], launcher[0], FAMILY " cannot start");
    }
}

static void begin_start(void) {
    is_starting = 1;
    atexit(say_launcher);
}

int MPI_Init(int *argc, char ***argv) {
    begin_start();
    int result = NEXT(MPI_Init)(argc, argv);
    is_starting = 0;
    return result;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    begin_start();
    int result = NEXT(MPI_Init_thread)(argc, argv, required, provided);
    is_starting = 0;
    return result;
}

BOTH_NAMES(MPI_Init)
BOTH_NAMES(MPI_Init_thread)

int check_fit(void) {
    if (outcore_interface() != OUTCORE_INTERFACE) {
        return failed(MPI_ERR_OTHER, "need liboutcore with interface %d, have version %s with interface %d; " BUILD_AGAIN,
                      OUTCORE_INTERFACE, outcore_version(), outcore_interface());
    }
    return check_launcher();
}
