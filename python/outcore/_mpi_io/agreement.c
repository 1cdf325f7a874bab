/* The agreements of the processes of a file, and how they notice that one of them is gone.
 *
 * A process may compute for hours before it enters a call of all processes, so a wait has no limit of its own. From the opening
 * of a file to its close, each process gives a sign of life in the pool. A process that waits tests the signs of the others.
 * If one stays away, it leaves the file, and withdraws its own sign: then the others leave too, and no later call waits. While
 * a file is opened, other signs count (peers.c).
 */

#define _POSIX_C_SOURCE 200809L
#include "mpi_io.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* Seconds in which a process waits without a pause, and between two tests of signs at most. */
#define BUSY_S 0.0001
#define TEST_S 0.1
#define LONGEST_PAUSE_S 0.02

double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void pause_after(double waited_s) {
    double seconds = waited_s / 20 < LONGEST_PAUSE_S ? waited_s / 20 : LONGEST_PAUSE_S;
    struct timespec pause = {.tv_nsec = (long)(seconds * 1e9)};
    if (waited_s < BUSY_S) {
        sched_yield();
    } else {
        nanosleep(&pause, NULL);
    }
}

#define FIX "close the file, and start the program again"

static int broken(const struct open_file *file) {
    if (file->lost < 0) {
        return failed(MPI_ERR_IO, "need all processes of %s, MPI cannot reach them; " FIX, file->path);
    }
    return failed(MPI_ERR_IO, "need all processes of %s, process %d has died or left; " FIX, file->path, file->lost);
}

/* Leaves the processes of the file, as one of them is gone; -1 if MPI does not say which. */
int leave(struct open_file *file, int lost) {
    file->is_broken = 1;
    file->lost = lost;
    withdraw_sign(file);
    forget_peers(file);
    return broken(file);
}

/* Gives a sign of life to the other processes of the file, if the pool has room for it. */
void give_sign(struct open_file *file) {
    int size;
    PMPI_Comm_size(file->comm, &size);
    file->has_sign = size > 1 && outcore_sign_give(file->file, file->first_sign + (uint64_t)file->rank) == 0;
}

void withdraw_sign(struct open_file *file) {
    if (file->has_sign) {
        outcore_sign_withdraw(file->file, file->first_sign + (uint64_t)file->rank);
        file->has_sign = 0;
    }
}

/* Whether a process does not give its sign of life, as far as this one can know. */
static int is_silent(const struct open_file *file, int peer) {
    if (file->peers != NULL) {
        return file->peers[peer] != 0 && outcore_pool_sign_is_given(file->pool, file->peers[peer]) == 0;
    }
    return file->has_sign && outcore_sign_is_given(file->file, file->first_sign + (uint64_t)peer) == 0;
}

/* Waits for the end of a call of MPI by all processes. After an error, MPI may still use its memory. */
int wait_for_all(struct open_file *file, MPI_Request *request) {
    double began = now_s(), next_test = began + file->patience_s / 4, away_since = 0;
    double test_s = file->patience_s / 50 < TEST_S ? file->patience_s / 50 : TEST_S;
    int is_done = 0, is_away = 0, peer = file->rank, size;
    PMPI_Comm_size(file->comm, &size);
    for (;;) {
        if (PMPI_Test(request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            return leave(file, -1);
        }
        double now = now_s();
        if (is_done) {
            return 0;
        }
        if (now >= next_test) {
            if (!is_away) {
                peer = (peer + 1) % size;
            }
            away_since = is_away ? away_since : now;
            is_away = is_silent(file, peer);
            if (is_away && now - away_since >= file->patience_s / 2) {
                return leave(file, peer);
            }
            next_test = now_s() + test_s;
        }
        pause_after(now - began);
    }
}

/* Replaces numbers by their sums or the largest ones of all processes, or by the sums of the processes before this one. */
int combine(struct open_file *file, enum combination how, int count, MPI_Offset *numbers) {
    size_t bytes = (size_t)count * sizeof *numbers;
    MPI_Op op = how == LARGEST ? MPI_MAX : MPI_SUM;
    MPI_Request request;
    if (file->is_broken) {
        return broken(file);
    }
    MPI_Offset *from = calloc(2, bytes), *to = from + count;
    if (from == NULL) {
        leave(file, -1);
        return failed(MPI_ERR_NO_MEM, "need memory for a message; free some");
    }
    memcpy(from, numbers, bytes);
    /* Not MPI_OFFSET, which has no sign in Open MPI 4.1. */
    int result = how == BEFORE ? PMPI_Iexscan(from, to, count, MPI_INT64_T, op, file->comm, &request)
                               : PMPI_Iallreduce(from, to, count, MPI_INT64_T, op, file->comm, &request);
    int class = result != MPI_SUCCESS ? leave(file, -1) : wait_for_all(file, &request);
    if (class == 0) {
        memcpy(numbers, to, bytes);
        free(from);
    }
    return class;
}

/* Gets numbers of all processes, in the order of their ranks, in memory that the caller frees. */
int gather(struct open_file *file, int count, const MPI_Offset *numbers, MPI_Offset **all) {
    MPI_Request request;
    int size;
    PMPI_Comm_size(file->comm, &size);
    /* After an error, MPI may still use its memory. */
    size_t own = (size_t)count, others = own * (size_t)size;
    MPI_Offset *to = calloc(others + own, sizeof *to), *from = to + others;
    *all = NULL;
    if (to == NULL) {
        leave(file, -1);
        return failed(MPI_ERR_NO_MEM, "need memory for a message; free some");
    }
    memcpy(from, numbers, own * sizeof *from);
    int result = PMPI_Iallgather(from, count, MPI_INT64_T, to, count, MPI_INT64_T, file->comm, &request);
    int class = result != MPI_SUCCESS ? leave(file, -1) : wait_for_all(file, &request);
    if (class == 0) {
        *all = to;
    }
    return class;
}

/* Returns the largest error class of all processes; this one found `own`. */
int class_of_all(MPI_Offset largest, int own) {
    if (largest != own) {
        failed((int)largest, "another process of the file failed; its error says why");
    }
    return (int)largest;
}

/* Returns the same error class on all processes: that of one that failed, or 0 if none has. `number` gets the largest. */
int agreed_most(struct open_file *file, int class, MPI_Offset *number) {
    MPI_Offset most[] = {class, *number};
    int lost = combine(file, LARGEST, 2, most);
    if (lost != 0) {
        return lost;
    }
    *number = most[1];
    return class_of_all(most[0], class);
}

int agreed(struct open_file *file, int class) {
    MPI_Offset none = 0;
    return agreed_most(file, class, &none);
}

/* Finds out whether all processes pass the same number. */
int is_same(struct open_file *file, MPI_Offset number, int *same) {
    MPI_Offset ends[2] = {number, ~number};
    int class = combine(file, LARGEST, 2, ends);
    *same = class == 0 && ends[0] == ~ends[1];
    return class;
}

/* Draws numbers that no other opening of a file has, the same on all processes. */
int draw(struct open_file *file, MPI_Offset numbers[2]) {
    numbers[0] = numbers[1] = 0;
    if (file->rank == 0 && getrandom(numbers, 2 * sizeof *numbers, 0) < 0) {
        numbers[0] = (MPI_Offset)time(NULL);
    }
    return combine(file, SUM, 2, numbers);
}
