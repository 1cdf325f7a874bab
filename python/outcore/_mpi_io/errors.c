/* Errors: classes of the standard, with the texts of outcore, and what processes agree on. */

#include "mpi_io.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char text[512];

int failed(int class, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return class;
}

static int class_of(int64_t result) {
    switch (-result) {
    case ENOENT: return MPI_ERR_NO_SUCH_FILE;
    case EEXIST: return MPI_ERR_FILE_EXISTS;
    case EACCES: return MPI_ERR_ACCESS;
    case EROFS: return MPI_ERR_READ_ONLY;
    case ENOSPC: return MPI_ERR_NO_SPACE;
    case EDQUOT: return MPI_ERR_QUOTA;
    case EBUSY: return MPI_ERR_FILE_IN_USE;
    case EINVAL: return MPI_ERR_BAD_FILE;
    case ENOMEM: return MPI_ERR_NO_MEM;
    default: return MPI_ERR_IO;
    }
}

/* Returns the class of the error of a call of liboutcore, or 0 for none, and keeps its text. */
int failed_call(const outcore_context *context, int64_t result, const char *what) {
    if (result >= 0) {
        return 0;
    }
    const char *why = context != NULL ? outcore_error_text(context) : "";
    return failed(class_of(result), "%s: %s", what, why[0] != '\0' ? why : strerror((int)-result));
}

/* Calls the error handler of a file with the last error of this thread. Returns its code: for each class, there is one code
 * with the last text. */
int raise_error(MPI_File handle, int class) {
    static struct {
        int class, code;
    } known[64];
    static int count;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int code = class, i = 0;
    char shortened[MPI_MAX_ERROR_STRING];
    if (class == MPI_SUCCESS) {
        return MPI_SUCCESS;
    }
    pthread_mutex_lock(&lock);
    while (i < count && known[i].class != class) {
        i++;
    }
    if (i == count && count < 64 && PMPI_Add_error_code(class, &code) == MPI_SUCCESS) {
        known[count].class = class;
        known[count++].code = code;
    }
    if (i < count) {
        code = known[i].code;
        snprintf(shortened, sizeof shortened, "%s", text);
        PMPI_Add_error_string(code, shortened);
    }
    pthread_mutex_unlock(&lock);
    PMPI_File_call_errhandler(handle, code);
    return code;
}

/* Returns the same error class on all processes: that of one that failed, or 0 if none has. */
int agreed(MPI_Comm comm, int class) {
    int found = class;
    if (PMPI_Allreduce(&class, &found, 1, MPI_INT, MPI_MAX, comm) != MPI_SUCCESS) {
        return failed(MPI_ERR_IO, "need all processes of the file, one does not answer; restart the program");
    }
    if (found != class) {
        failed(found, "another process of the file failed; its error says why");
    }
    return found;
}

/* Returns whether all processes pass the same number; -1 if one does not answer. */
int is_same(MPI_Comm comm, MPI_Offset number) {
    MPI_Offset ends[2] = {number, -number}, most[2];
    return PMPI_Allreduce(ends, most, 2, MPI_OFFSET, MPI_MAX, comm) != MPI_SUCCESS ? -1 : most[0] == -most[1];
}
