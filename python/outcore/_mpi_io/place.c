/* Names of files: which of them are in pools, and the connections to these pools. */

#include "mpi_io.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

/* The longest timeout: a year. */
#define MOST_SECONDS 31536000.0

/* The extended attribute by which a mount gives the address of a file in its pool. */
#define ADDRESS "user.outcore.address"

static int starts(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

static int unusable(const char *text) {
    return failed(MPI_ERR_BAD_FILE,
                  "need outcore://HOST:PORT/NAME, outcore+tls://HOST:PORT/NAME or outcore:/SOCKET::NAME, have '%s'; give the "
                  "address of a file in a served pool",
                  text);
}

/* Splits an address at `split`, which has `skipped` bytes that belong to neither part. */
static int divide(const char *prefix, const char *text, const char *split, size_t skipped, struct place *place) {
    const char *path = split + skipped;
    path += strspn(path, "/");
    int bytes = snprintf(place->url, sizeof place->url, "%s%.*s", prefix, (int)(split - text), text);
    if (bytes >= (int)sizeof place->url || strlen(path) >= sizeof place->path || path[0] == '\0') {
        return unusable(text);
    }
    strcpy(place->path, path);
    place->is_in_pool = 1;
    return 0;
}

/* Splits the address of a file. `is_embedded` becomes 1 if only another process reaches the pool. */
static int parse(const char *text, struct place *place, int *is_embedded) {
    struct stat found;
    const char *prefix = starts(text, "outcore+tls:") ? "outcore+tls:" : "outcore:";
    const char *rest = text + strlen(prefix), *split = NULL;
    int result;
    if (rest[0] == '/' && rest[1] == '/' && rest[2] == '/') {
        rest += 2;
        result = (split = strstr(rest, ":/")) == NULL ? unusable(text) : divide("outcore:", rest, split, 2, place);
    } else if (rest[0] == '/' && rest[1] != '/' && (split = strstr(rest, "::")) != NULL) {
        result = divide("outcore:", rest, split, 2, place);
    } else {
        char scheme[20];
        const char *host = rest + (rest[0] == '/') + (rest[0] == '/' && rest[1] == '/');
        snprintf(scheme, sizeof scheme, "%s//", prefix);
        if (host == rest || (split = strchr(host, '/')) == NULL || memchr(host, ':', (size_t)(split - host)) == NULL) {
            return unusable(text);
        }
        return divide(scheme, host, split, 1, place);
    }
    if (result == 0 && stat(place->url + strlen("outcore:"), &found) == 0 && S_ISDIR(found.st_mode)) {
        *is_embedded = 1;
        return failed(MPI_ERR_BAD_FILE, "need a served pool, have the directory %s of an embedded one; serve it with 'outcore "
                                        "pool up'",
                      place->url + strlen("outcore:"));
    }
    return result;
}

/* Copies the address of an existing name. Returns its length, 0 if it has none, or -errno. */
static int address(const char *name, char *value, size_t size) {
    ssize_t bytes = getxattr(name, ADDRESS, value, size - 1);
    if (bytes < 0) {
        return errno == ENODATA || errno == EOPNOTSUPP ? 0 : -errno;
    }
    value[bytes] = '\0';
    return (int)bytes;
}

/* Finds out whether a name is that of a file in a pool: an address, or a path below a mount. A file that does not exist has
 * the address of its directory and its name. */
int find_place(const char *name, struct place *place) {
    char found[8192], parent[4096] = ".";
    struct statvfs mount;
    int is_embedded = 0, bytes;
    place->is_in_pool = place->is_mounted = place->is_read_only = 0;
    if (starts(name, "outcore:") || starts(name, "outcore+tls:")) {
        return parse(name, place, &is_embedded);
    }
    const char *existing = name;
    bytes = address(name, found, sizeof found);
    if (bytes == -ENOENT) {
        const char *slash = strrchr(name, '/'), *file = slash != NULL ? slash + 1 : name;
        if (slash != NULL) {
            snprintf(parent, sizeof parent, "%.*s", slash > name ? (int)(slash - name) : 1, name);
        }
        bytes = address(existing = parent, found, sizeof found);
        size_t used = bytes > 0 ? (size_t)bytes : 0;
        if (used < 2 || file[0] == '\0' || used + strlen(file) + 2 > sizeof found) {
            return 0;
        }
        int is_top = found[used - 1] == '/' || strcmp(found + used - 2, "::") == 0;
        snprintf(found + used, sizeof found - used, "%s%s", is_top ? "" : "/", file);
    }
    if (bytes <= 0) {
        return 0;
    }
    int result = parse(found, place, &is_embedded);
    if (is_embedded) {
        place->is_in_pool = 0;
        return 0;
    }
    place->is_mounted = 1;
    place->is_read_only = result == 0 && statvfs(existing, &mount) == 0 && (mount.f_flag & ST_RDONLY) != 0;
    return result;
}

/* Reads the seconds after which a server that does not answer counts as lost. */
static int read_patience(double *seconds) {
    const char *given = getenv("OUTCORE_TIMEOUT");
    char *end = NULL;
    *seconds = 60;
    if (given == NULL || given[0] == '\0') {
        return 0;
    }
    *seconds = strtod(given, &end);
    /* Not a number compares as false. */
    if (end == given || *end != '\0' || !(*seconds > 0 && *seconds <= MOST_SECONDS)) {
        return failed(MPI_ERR_ARG, "need seconds above 0 in the variable OUTCORE_TIMEOUT, have '%s'; set it to a number such as "
                                   "60, or unset it",
                      given);
    }
    return 0;
}

/* A connection, and the variables of the environment that it was made by. */
struct connection {
    pid_t pid;
    char *url, *key;
    double patience_s;
    outcore_context *context;
    outcore_pool *pool;
    struct connection *next;
};

static struct connection *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Finds the same connection as `wanted`, and adds `wanted` if there is none and it has a pool. */
static struct connection *find_connection(struct connection *wanted) {
    pthread_mutex_lock(&lock);
    struct connection *found = all;
    while (found != NULL && (found->pid != wanted->pid || found->patience_s != wanted->patience_s
                             || strcmp(found->url, wanted->url) != 0 || strcmp(found->key, wanted->key) != 0)) {
        found = found->next;
    }
    if (found == NULL && wanted->pool != NULL) {
        wanted->next = all;
        found = all = wanted;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static void free_connection(struct connection *connection) {
    outcore_pool_close(connection->pool);
    outcore_context_free(connection->context);
    free(connection->url);
    free(connection->key);
    free(connection);
}

/* Connects to a pool. Connections are kept for the life of the process; a process that was forked gets its own. */
static int make_connection(const struct connection *wanted, struct connection **made) {
    struct connection *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL || (fresh->url = strdup(wanted->url)) == NULL || (fresh->key = strdup(wanted->key)) == NULL
        || outcore_context_new(&fresh->context) != 0) {
        return failed(MPI_ERR_NO_MEM, "need memory for a connection; free some");
    }
    fresh->pid = wanted->pid;
    fresh->patience_s = wanted->patience_s;
    int result = outcore_pool_connect(fresh->context, fresh->url, NULL, fresh->patience_s, &fresh->pool);
    int class = failed_call(fresh->context, result, fresh->url);
    /* Another thread may have connected meanwhile. */
    *made = class == 0 ? find_connection(fresh) : NULL;
    if (*made != fresh) {
        free_connection(fresh);
    }
    return class;
}

/* Gives a file its connection to a pool. */
int connect_pool(const char *url, struct open_file *file) {
    const char *key = getenv("OUTCORE_KEY");
    struct connection wanted = {.pid = getpid(), .url = (char *)url, .key = (char *)(key != NULL ? key : "")};
    int class = read_patience(&wanted.patience_s);
    struct connection *found = class == 0 ? find_connection(&wanted) : NULL;
    if (class == 0 && found == NULL) {
        class = make_connection(&wanted, &found);
    }
    if (class == 0) {
        file->context = found->context;
        file->pool = found->pool;
        file->patience_s = found->patience_s;
    }
    return class;
}
