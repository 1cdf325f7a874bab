/* Calls of MPI that complete requests. MPI raises the error of a request of this library at a communicator, whose handler ends the
 * program by default. These calls raise it at its file, as errors of I/O, and return it.
 *
 * MPI asks for the state of such a request in the thread that completes it.
 */

#include "mpi_io.h"

#include <stdlib.h>
#include <string.h>

/* An error at a request, or MPI_SUCCESS. */
struct failure {
    int code;
    struct open_file *file;
    MPI_File handle;
};

/* A call that completes requests. */
struct completion {
    int count;
    MPI_Request *requests; /* as they were before the call */
    struct failure *failures;
};

static _Thread_local struct completion *current;

/* Keeps the error of a job for the call that completes it. Returns 0 if this library does not define that call. */
int keep_failure(const struct job *job) {
    for (int i = 0; current != NULL && i < current->count; i++) {
        if (current->requests[i] == job->request) {
            current->failures[i] = (struct failure){job->code, job->file, job->handle};
            return 1;
        }
    }
    return 0;
}

/* Begins a call that may complete these requests. Without memory, MPI raises their errors. */
static void begin(struct completion *call, int count, const MPI_Request *requests) {
    *call = (struct completion){.count = 0};
    if (count <= 0 || requests == NULL) {
        return;
    }
    call->requests = malloc((size_t)count * sizeof *requests);
    call->failures = calloc((size_t)count, sizeof *call->failures);
    if (call->requests != NULL && call->failures != NULL) {
        memcpy(call->requests, requests, (size_t)count * sizeof *requests);
        call->count = count;
        current = call;
    }
}

enum kind { ASKS, COMPLETES_ONE, COMPLETES_SEVERAL };

/* Ends a call that has completed requests: those at `places`, or without them the first ones. Returns its result. */
static int end(struct completion *call, enum kind kind, int result, int completed, const int *places, MPI_Status *statuses) {
    int has_statuses = kind == COMPLETES_SEVERAL && statuses != MPI_STATUSES_IGNORE;
    current = NULL;
    for (int i = 0; kind != ASKS && i < completed && i < call->count; i++) {
        int place = places != NULL ? places[i] : i;
        if (place < 0 || place >= call->count || call->failures[place].code == MPI_SUCCESS) {
            continue;
        }
        const struct failure *failure = &call->failures[place];
        for (int j = 0; has_statuses && result == MPI_SUCCESS && j < completed; j++) {
            statuses[j].MPI_ERROR = MPI_SUCCESS;
        }
        if (has_statuses) {
            statuses[i].MPI_ERROR = failure->code;
        }
        result = kind == COMPLETES_ONE ? failure->code : MPI_ERR_IN_STATUS;
        /* A file that has been closed has no handler any more. */
        if (find_file(failure->handle) == failure->file) {
            PMPI_File_call_errhandler(failure->handle, failure->code);
        }
    }
    free(call->requests);
    free(call->failures);
    return result;
}

/* The body of a call. Without requests of this library, it costs one look at a counter. */
#define COMPLETE(name, arguments, kind, count, requests, completed, places, statuses) \
    {                                                                                 \
        static __typeof__(&name) next;                                                \
        struct completion call;                                                       \
        if (next == NULL) {                                                           \
            next = NEXT(name);                                                        \
        }                                                                             \
        if (!has_jobs()) {                                                            \
            return next arguments;                                                    \
        }                                                                             \
        begin(&call, count, requests);                                                \
        int result = next arguments;                                                  \
        return end(&call, kind, result, completed, places, statuses);                 \
    }                                                                                 \
    BOTH_NAMES(name)

int MPI_Wait(MPI_Request *request, MPI_Status *status)
    COMPLETE(MPI_Wait, (request, status), COMPLETES_ONE, 1, request, 1, NULL, NULL)

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
    COMPLETE(MPI_Test, (request, flag, status), COMPLETES_ONE, 1, request, *flag, NULL, NULL)

int MPI_Request_get_status(MPI_Request request, int *flag, MPI_Status *status)
    COMPLETE(MPI_Request_get_status, (request, flag, status), ASKS, 1, &request, 0, NULL, NULL)

#if MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1)
int MPI_Request_get_status_all(int count, const MPI_Request requests[], int *flag, MPI_Status statuses[])
    COMPLETE(MPI_Request_get_status_all, (count, requests, flag, statuses), ASKS, count, requests, 0, NULL, NULL)

int MPI_Request_get_status_any(int count, const MPI_Request requests[], int *place, int *flag, MPI_Status *status)
    COMPLETE(MPI_Request_get_status_any, (count, requests, place, flag, status), ASKS, count, requests, 0, NULL, NULL)

int MPI_Request_get_status_some(int count, const MPI_Request requests[], int *found, int places[], MPI_Status statuses[])
    COMPLETE(MPI_Request_get_status_some, (count, requests, found, places, statuses), ASKS, count, requests, 0, NULL, NULL)
#endif

int MPI_Waitany(int count, MPI_Request requests[], int *place, MPI_Status *status)
    COMPLETE(MPI_Waitany, (count, requests, place, status), COMPLETES_ONE, count, requests, *place >= 0, place, NULL)

int MPI_Testany(int count, MPI_Request requests[], int *place, int *flag, MPI_Status *status)
    COMPLETE(MPI_Testany, (count, requests, place, flag, status), COMPLETES_ONE, count, requests, *flag && *place >= 0, place,
             NULL)

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
    COMPLETE(MPI_Waitall, (count, requests, statuses), COMPLETES_SEVERAL, count, requests, count, NULL, statuses)

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[])
    COMPLETE(MPI_Testall, (count, requests, flag, statuses), COMPLETES_SEVERAL, count, requests, *flag ? count : 0, NULL, statuses)

int MPI_Waitsome(int count, MPI_Request requests[], int *completed, int places[], MPI_Status statuses[])
    COMPLETE(MPI_Waitsome, (count, requests, completed, places, statuses), COMPLETES_SEVERAL, count, requests, *completed, places,
             statuses)

int MPI_Testsome(int count, MPI_Request requests[], int *completed, int places[], MPI_Status statuses[])
    COMPLETE(MPI_Testsome, (count, requests, completed, places, statuses), COMPLETES_SEVERAL, count, requests, *completed, places,
             statuses)
