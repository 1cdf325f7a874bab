/* Accesses of processes one after the other: the shared pointer of a file, and the bytes of an access in atomic mode. No process
 * depends on calls of MPI by another one, as it would with a window of MPI.
 *
 * A process may use the shared pointer while a small file beside the opened one exists, which it created with O_EXCL. The names
 * are new for each opening, and go at its close. In atomic mode, an access locks its bytes at the manager of the pool.
 */

#define _POSIX_C_SOURCE 200809L
#include "mpi_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void turn_path(const struct open_file *file, const char *what, char *path, size_t size) {
    snprintf(path, size, "%s.%s", file->turns, what);
}

/* The wait for another process. */
struct wait {
    double end;
    struct timespec pause;
};

static struct wait begin_wait(const struct open_file *file) {
    return (struct wait){.end = now_s() + file->patience_s, .pause = {.tv_nsec = 200000}};
}

/* Pauses before the next try. Returns 0 if the wait has taken too long. */
static int wait_more(struct wait *wait) {
    if (now_s() > wait->end) {
        return 0;
    }
    nanosleep(&wait->pause, NULL);
    wait->pause.tv_nsec = wait->pause.tv_nsec < 20000000 ? wait->pause.tv_nsec * 2 : wait->pause.tv_nsec;
    return 1;
}

/* Waits until no other process of the file has a turn. */
static int take_turn(struct open_file *file) {
    char path[4200];
    outcore_file *lock;
    struct wait wait = begin_wait(file);
    int result;
    turn_path(file, "lock", path, sizeof path);
    file->has_turns = 1;
    while ((result = outcore_file_open(file->pool, path, O_RDWR | O_CREAT | O_EXCL, 0600, NULL, &lock)) == -EEXIST) {
        if (!wait_more(&wait)) {
            return failed(MPI_ERR_IO, "need the turn of another process to end, it has not for %g s; restart the program, and "
                                      "remove %s",
                          file->patience_s, path);
        }
    }
    if (result == 0) {
        outcore_file_close(lock);
    }
    return failed_call(file->context, result, path);
}

/* Ends a turn. Returns the given error class, or that of this call. */
static int end_turn(struct open_file *file, int class) {
    char path[4200];
    turn_path(file, "lock", path, sizeof path);
    int result = outcore_remove(file->pool, path);
    return class != 0 ? class : failed_call(file->context, result, path);
}

static int replace_pointer(struct open_file *file, int is_added, MPI_Offset value, MPI_Offset *before) {
    char path[4200];
    outcore_file *pointer;
    int64_t found = file->first_shared;
    turn_path(file, "pointer", path, sizeof path);
    int64_t result = outcore_file_open(file->pool, path, O_RDWR | O_CREAT, 0600, NULL, &pointer);
    if (result < 0) {
        return failed_call(file->context, result, path);
    }
    result = outcore_file_read_at(pointer, 0, &found, sizeof found);
    if (result >= 0) {
        int64_t next = is_added ? found + value : value;
        *before = found;
        result = result == sizeof found && next == found ? 0 : outcore_file_write_at(pointer, 0, &next, sizeof next);
    }
    int class = failed_call(file->context, result, path);
    outcore_file_close(pointer);
    return class;
}

/* Adds to the shared pointer of all processes. `before` gets its earlier value. */
int move_shared(struct open_file *file, MPI_Offset by, MPI_Offset *before) {
    int class = take_turn(file);
    return class != 0 ? class : end_turn(file, replace_pointer(file, 1, by, before));
}

int set_shared(struct open_file *file, MPI_Offset to) {
    MPI_Offset before;
    int class = take_turn(file);
    return class != 0 ? class : end_turn(file, replace_pointer(file, 0, to, &before));
}

/* Finds the first byte of an access, and the number of bytes up to its last one. */
static uint64_t extent_of(const struct tree *tree, const struct access *access, uint64_t *bytes) {
    int64_t from = access->from, to = access->from + access->bytes;
    const struct tree *child = tree->child;
    /* Tiles that overlap: the places of whole tiles never decrease. */
    if (tree->kind == LOOP && locate(child, child->bytes - 1) - locate(child, 0) >= tree->stride) {
        from -= from % child->bytes;
        to += child->bytes - 1 - (to - 1) % child->bytes;
    }
    int64_t first = locate(tree, from);
    *bytes = (uint64_t)(locate(tree, to - 1) - first + 1);
    return (uint64_t)first;
}

/* Waits until no other access in atomic mode excludes this one. `lock` gets the lock on its bytes, 0 if it has none. */
int lock_bytes(struct open_file *file, int is_write, const struct access *access, uint64_t *lock) {
    struct wait wait = begin_wait(file);
    uint64_t first, bytes;
    int result;
    *lock = 0;
    if (file->view.tree.bytes == 0) {
        return 0;
    }
    first = extent_of(&file->view.tree, access, &bytes);
    while ((result = outcore_file_lock(file->file, first, bytes, !is_write, lock)) == -EBUSY) {
        if (!wait_more(&wait)) {
            return failed(MPI_ERR_IO, "need the end of another access in atomic mode to these bytes, it has not ended for %g s; "
                                      "restart the program",
                          file->patience_s);
        }
    }
    return failed_call(file->context, result, file->path);
}

/* Returns the given error class, or that of this call. */
int unlock_bytes(struct open_file *file, uint64_t lock, int class) {
    int result = lock != 0 ? outcore_file_unlock(file->file, lock) : 0;
    return class != 0 ? class : failed_call(file->context, result, file->path);
}

/* Removes the files of all turns; one process calls it, when no other may take a turn any more. */
void remove_turns(struct open_file *file) {
    char path[4200];
    turn_path(file, "lock", path, sizeof path);
    outcore_remove(file->pool, path);
    turn_path(file, "pointer", path, sizeof path);
    outcore_remove(file->pool, path);
}
