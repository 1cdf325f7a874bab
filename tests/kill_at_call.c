/* A library to preload. It counts the calls that change names or lengths of files, or make files durable. It
   kills its process (SIGKILL) before call number KILL_AT, or at the end if a run makes fewer calls. Without
   KILL_AT, it writes the count to standard error at the end. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_int calls;
static int doomed;

__attribute__((constructor)) static void begin(void) {
    const char *number = getenv("KILL_AT");
    doomed = number ? atoi(number) : 0;
}

__attribute__((destructor)) static void end(void) {
    if (doomed) {
        kill(getpid(), SIGKILL);
    }
    fprintf(stderr, "calls: %d\n", calls);
}

static void count(void) {
    if (atomic_fetch_add(&calls, 1) + 1 == doomed) {
        kill(getpid(), SIGKILL);
        pause();
    }
}

#define COUNTED(name, parameters, arguments)       \
    int name parameters {                          \
        static int(*next) parameters;              \
        if (!next) {                               \
            next = dlsym(RTLD_NEXT, #name);        \
        }                                          \
        count();                                   \
        return next arguments;                     \
    }

COUNTED(mkdir, (const char *path, mode_t mode), (path, mode))
COUNTED(rename, (const char *old, const char *new), (old, new))
COUNTED(link, (const char *old, const char *new), (old, new))
COUNTED(linkat, (int from, const char *old, int to, const char *new, int flags), (from, old, to, new, flags))
COUNTED(unlink, (const char *path), (path))
COUNTED(unlinkat, (int directory, const char *path, int flags), (directory, path, flags))
COUNTED(rmdir, (const char *path), (path))
COUNTED(fsync, (int file), (file))
COUNTED(fdatasync, (int file), (file))
COUNTED(ftruncate, (int file, off_t length), (file, length))
COUNTED(ftruncate64, (int file, off64_t length), (file, length))
COUNTED(fallocate, (int file, int mode, off_t at, off_t length), (file, mode, at, length))
COUNTED(fallocate64, (int file, int mode, off64_t at, off64_t length), (file, mode, at, length))
