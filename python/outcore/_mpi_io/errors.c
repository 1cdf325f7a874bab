/* Errors: classes of the standard, with the texts of outcore. */

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

/* Codes of one class, and of all. */
#define MOST_CODES_OF_CLASS 32
#define MOST_CODES 1024

static struct {
    int class, code;
    uint64_t used;
    char text[MPI_MAX_ERROR_STRING];
} known[MOST_CODES];
static int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns an error code for the last error of this thread. MPI takes no code back: for too many texts of a class, the code
 * that was returned the longest time ago gets the new one. */
int error_code(int class) {
    static uint64_t calls;
    char shown[MPI_MAX_ERROR_STRING];
    int code = class, oldest = -1, of_class = 0, i;
    snprintf(shown, sizeof shown, "%s", text);
    pthread_mutex_lock(&lock);
    for (i = 0; i < count && (known[i].class != class || strcmp(known[i].text, shown) != 0); i++) {
        if (known[i].class == class && (of_class++ == 0 || known[i].used < known[oldest].used)) {
            oldest = i;
        }
    }
    int is_new = i == count;
    if (is_new && (of_class == MOST_CODES_OF_CLASS || count == MOST_CODES
                   || PMPI_Add_error_code(class, &known[count].code) != MPI_SUCCESS)) {
        i = oldest;
    } else if (is_new) {
        known[count++].class = class;
    }
    if (i >= 0) {
        code = known[i].code;
        known[i].used = ++calls;
    }
    if (i >= 0 && is_new) {
        strcpy(known[i].text, shown);
        PMPI_Add_error_string(code, shown);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

/* MPICH 4 has no texts for codes of the standard's classes. */
int MPI_Error_string(int errorcode, char *string, int *resultlen) {
    int i;
    pthread_mutex_lock(&lock);
    for (i = 0; i < count && known[i].code != errorcode; i++) {
    }
    if (i < count) {
        strcpy(string, known[i].text);
        *resultlen = (int)strlen(string);
    }
    pthread_mutex_unlock(&lock);
    return i < count ? MPI_SUCCESS : NEXT(MPI_Error_string)(errorcode, string, resultlen);
}

BOTH_NAMES(MPI_Error_string)

/* Calls the error handler of a file with the last error of this thread. Returns its code. */
int raise_error(MPI_File handle, int class) {
    if (class == MPI_SUCCESS) {
        return MPI_SUCCESS;
    }
    int code = error_code(class);
#ifdef OMPI_MAJOR_VERSION
    /* Open MPI refuses MPI_FILE_NULL here, but a new file has its handler. */
    if (handle == MPI_FILE_NULL) {
        if (open_shadow(&handle) == 0) {
            PMPI_File_call_errhandler(handle, code);
            NEXT(MPI_File_close)(&handle);
        }
        return code;
    }
#endif
    PMPI_File_call_errhandler(handle, code);
    return code;
}
