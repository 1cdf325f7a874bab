/* A library to preload. Reads of files `metadata.sqlite*` fail with EIO from the byte that the environment gives. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int fails(int file, off_t at) {
    char link[64], path[4096];
    const char *from = getenv("UNREADABLE_STORE");
    if (!from || at < atol(from)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (!strstr(path, "/metadata.sqlite")) return 0;
    errno = EIO;
    return 1;
}

ssize_t read(int file, void *to, size_t bytes) { return fails(file, lseek(file, 0, SEEK_CUR)) ? -1 : REAL(read)(file, to, bytes); }
ssize_t pread(int file, void *to, size_t bytes, off_t at) { return fails(file, at) ? -1 : REAL(pread)(file, to, bytes, at); }
ssize_t pread64(int file, void *to, size_t bytes, off64_t at) {
    return fails(file, at) ? -1 : REAL(pread64)(file, to, bytes, at);
}
