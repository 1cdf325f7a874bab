/* Accesses of processes one after the other: the shared pointer of a file, and its atomic mode.
 *
 * A process has its turn while a small file beside the opened one exists, which it created with O_EXCL. So no process depends
 * on calls of MPI by another one, as it would with a window of MPI. The names are new for each opening, and go at its close.
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

/* Waits until no other process of the file has a turn. */
int take_turn(struct open_file *file) {
    char path[4200];
    outcore_file *lock;
    double end = now_s() + file->patience_s;
    struct timespec pause = {.tv_nsec = 200000};
    int result;
    turn_path(file, "lock", path, sizeof path);
    file->has_turns = 1;
    while ((result = outcore_file_open(file->pool, path, O_RDWR | O_CREAT | O_EXCL, 0600, NULL, &lock)) == -EEXIST) {
        if (now_s() > end) {
            return failed(MPI_ERR_IO, "need the turn of another process to end, it has not for %g s; restart the program, and "
                                      "remove %s",
                          file->patience_s, path);
        }
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec < 20000000 ? pause.tv_nsec * 2 : pause.tv_nsec;
    }
    if (result == 0) {
        outcore_file_close(lock);
    }
    return failed_call(file->context, result, path);
}

/* Ends a turn. Returns the given error class, or that of this call. */
int end_turn(struct open_file *file, int class) {
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

/* Removes the files of all turns; one process calls it, when no other may take a turn any more. */
void remove_turns(struct open_file *file) {
    char path[4200];
    turn_path(file, "lock", path, sizeof path);
    outcore_remove(file->pool, path);
    turn_path(file, "pointer", path, sizeof path);
    outcore_remove(file->pool, path);
}
