/* A library to preload. It records the writes and syncs of a process below a directory for `power_loss.py`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int notes = -1;
static long number, last;
static char root[4096];

__attribute__((constructor)) static void begin(void) {
    snprintf(root, sizeof root, "%s/", getenv("POWER_LOSS_ROOT"));
    last = atol(getenv("POWER_LOSS_AFTER"));
    notes = open(getenv("POWER_LOSS_NOTES"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (notes < 0) abort();
}

/* The path of an open file, if it is a regular one below the directory. */
static int is_watched(int file, char *path) {
    struct stat status;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = notes < 0 || fstat(file, &status) || !S_ISREG(status.st_mode) ? -1 : readlink(link, path, 4095);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, root, strlen(root)) == 0;
}

static const long nowhere[3];

/* Writes one note; the caller holds `mutex`. `at` has offset and length of a write, and the length of the file before
   it. A note is a line, and then the bytes of the file that the write is about to replace. */
static long note(char kind, long about, const long at[3], const char *path, const char *bytes, long have) {
    char line[8500];
    number++;
    int head = snprintf(line, sizeof line, "%c %ld %ld %ld %ld %ld %s\n", kind, about ? about : number, at[0], at[1], at[2], have, path);
    struct iovec parts[] = {{line, head}, {(void *)bytes, have}};
    if (REAL(writev)(notes, parts, 2) != head + have) abort();
    return about ? about : number;
}

/* The power fails at the end of a program that makes fewer records than `last`. */
__attribute__((destructor)) static void end(void) {
    if (last) kill(getpid(), SIGKILL);
}

static void ended(char kind, long about) {
    pthread_mutex_lock(&mutex);
    note(kind, about, nowhere, "-", NULL, 0);
    if (last && number >= last) kill(getpid(), SIGKILL);
    pthread_mutex_unlock(&mutex);
}

/* Records `length` bytes from `offset` (-1: the position of the file) before a write replaces them. */
static long before(int file, long offset, long length) {
    char path[4096];
    struct stat status;
    if (!is_watched(file, path)) return 0;
    fstat(file, &status);
    if (offset < 0) offset = fcntl(file, F_GETFL) & O_APPEND ? status.st_size : lseek(file, 0, SEEK_CUR);
    long have = offset >= status.st_size ? 0 : status.st_size - offset < length ? status.st_size - offset : length;
    char *bytes = malloc(have + 1), link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    int reader = open(link, O_RDONLY | O_CLOEXEC);
    for (long at = 0, got; at < have; at += got)
        if ((got = pread(reader, bytes + at, have - at, offset + at)) <= 0) abort();
    close(reader);
    pthread_mutex_lock(&mutex);
    const long at[] = {offset, length, status.st_size};
    long found = note('W', 0, at, path, bytes, have);
    pthread_mutex_unlock(&mutex);
    free(bytes);
    return found;
}

static long total(const struct iovec *parts, int count) {
    long bytes = 0;
    for (int i = 0; i < count; i++) bytes += parts[i].iov_len;
    return bytes;
}

#define WRITES(result, name, parameters, arguments, file, offset, length) \
    result name parameters {                                              \
        long about = before(file, offset, length);                        \
        result done = REAL(name) arguments;                               \
        if (about) ended('D', about);                                     \
        return done;                                                      \
    }

WRITES(ssize_t, write, (int f, const void *b, size_t n), (f, b, n), f, -1, n)
WRITES(ssize_t, writev, (int f, const struct iovec *v, int c), (f, v, c), f, -1, total(v, c))
WRITES(ssize_t, pwrite, (int f, const void *b, size_t n, off_t o), (f, b, n, o), f, o, n)
WRITES(ssize_t, pwrite64, (int f, const void *b, size_t n, off_t o), (f, b, n, o), f, o, n)
WRITES(ssize_t, pwritev, (int f, const struct iovec *v, int c, off_t o), (f, v, c, o), f, o, total(v, c))
WRITES(ssize_t, pwritev64, (int f, const struct iovec *v, int c, off_t o), (f, v, c, o), f, o, total(v, c))

#define SYNCS(name)                                            \
    int name(int file) {                                       \
        char path[4096];                                       \
        long about = 0;                                        \
        if (is_watched(file, path)) {                          \
            pthread_mutex_lock(&mutex);                        \
            about = note('S', 0, nowhere, path, NULL, 0);         \
            pthread_mutex_unlock(&mutex);                      \
        }                                                      \
        int failed = REAL(name)(file);                         \
        if (about && !failed) ended('E', about);               \
        return failed;                                         \
    }

SYNCS(fsync)
SYNCS(fdatasync)

int rename(const char *from, const char *to) {
    char paths[8300];
    int failed = REAL(rename)(from, to);
    snprintf(paths, sizeof paths, "%s\t%s", from, to);
    if (!failed && notes >= 0 && strncmp(from, root, strlen(root)) == 0) {
        pthread_mutex_lock(&mutex);
        note('R', 0, nowhere, paths, NULL, 0);
        pthread_mutex_unlock(&mutex);
    }
    return failed;
}
