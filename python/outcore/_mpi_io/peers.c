/* The processes that this one knows from earlier openings: by their signs of life in a pool, it notices while it opens a file that
 * one of them is gone.
 *
 * Each process has a number, and gives its sign of life until it ends. By the first message of each opening, the processes tell
 * each other their numbers. Before that, a process knows those that earlier openings have told it.
 */

#include "mpi_io.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* The processes that this one knows in one pool. */
struct known {
    const outcore_pool *pool;
    uint64_t own; /* its number, or 0 */
    int size;
    uint64_t *numbers; /* by rank in MPI_COMM_WORLD, 0 if unknown */
    struct known *next;
};

static struct known *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Finds the processes that this one knows in a pool; the caller holds the lock. NULL without memory. */
static struct known *known_in(const outcore_pool *pool) {
    struct known *found = all;
    int size = 0;
    while (found != NULL && found->pool != pool) {
        found = found->next;
    }
    if (found == NULL && (found = calloc(1, sizeof *found)) != NULL) {
        PMPI_Comm_size(MPI_COMM_WORLD, &size);
        found->numbers = calloc((size_t)size, sizeof *found->numbers);
        found->size = found->numbers != NULL ? size : 0;
        found->pool = pool;
        found->next = all;
        all = found;
    }
    return found;
}

enum direction { TO_FILE, FROM_FILE, FORGET };

/* Copies the numbers of the processes of a file. Those of another MPI_COMM_WORLD stay unknown. */
static void copy(struct known *known, struct open_file *file, enum direction direction) {
    MPI_Group group, world;
    int size;
    PMPI_Comm_size(file->comm, &size);
    int *ranks = malloc(2 * (size_t)size * sizeof *ranks), *of_world = ranks + size;
    if (ranks == NULL) {
        return;
    }
    for (int i = 0; i < size; i++) {
        ranks[i] = i;
    }
    PMPI_Comm_group(file->comm, &group);
    PMPI_Comm_group(MPI_COMM_WORLD, &world);
    if (PMPI_Group_translate_ranks(group, size, ranks, world, of_world) == MPI_SUCCESS) {
        for (int i = 0; i < size; i++) {
            if (of_world[i] < 0 || of_world[i] >= known->size) {
                continue;
            }
            uint64_t *number = &known->numbers[of_world[i]];
            if (direction == TO_FILE) {
                file->peers[i] = *number;
            } else {
                *number = direction == FROM_FILE ? file->peers[i] : 0;
            }
        }
    }
    PMPI_Group_free(&group);
    PMPI_Group_free(&world);
    free(ranks);
}

/* Begins the opening of a file: gives this process's sign, and finds the numbers of the others, as far as it knows them. */
int know_peers(struct open_file *file) {
    uint64_t fresh = 0, *own;
    int size;
    PMPI_Comm_size(file->comm, &size);
    if (size == 1) {
        return 0;
    }
    if ((file->peers = calloc((size_t)size, sizeof *file->peers)) == NULL) {
        return failed(MPI_ERR_NO_MEM, "need memory for %d processes; free some", size);
    }
    own = &file->peers[file->rank];
    if (getrandom(&fresh, sizeof fresh, 0) < 0) {
        fresh = 0;
    }
    pthread_mutex_lock(&lock);
    struct known *known = known_in(file->pool);
    if (known != NULL) {
        copy(known, file, TO_FILE);
        known->own = known->own != 0 ? known->own : fresh >> 2;
        *own = known->own;
    }
    pthread_mutex_unlock(&lock);
    /* It costs a request to the manager in the first opening only. */
    if (*own != 0 && outcore_pool_sign_give(file->pool, *own) != 0) {
        *own = 0;
    }
    return 0;
}

/* Keeps the numbers that the processes of a file have sent each other: number i is `told[i * stride]`. */
void remember_peers(struct open_file *file, const MPI_Offset *told, int stride) {
    int size;
    if (file->peers == NULL) {
        return;
    }
    PMPI_Comm_size(file->comm, &size);
    for (int i = 0; i < size; i++) {
        file->peers[i] = (uint64_t)told[i * stride];
    }
    pthread_mutex_lock(&lock);
    struct known *known = known_in(file->pool);
    if (known != NULL) {
        copy(known, file, FROM_FILE);
    }
    pthread_mutex_unlock(&lock);
}

/* Ends an opening that this process leaves: takes its sign from the others, so that they leave too. It and they get new ones in
 * the next opening. */
void forget_peers(struct open_file *file) {
    if (file->peers == NULL) {
        return;
    }
    uint64_t own = file->peers[file->rank];
    pthread_mutex_lock(&lock);
    struct known *known = known_in(file->pool);
    if (known != NULL) {
        copy(known, file, FORGET);
        known->own = known->own != own ? known->own : 0;
    }
    pthread_mutex_unlock(&lock);
    outcore_pool_sign_withdraw(file->pool, own);
}

/* A process that ends MPI comes to no call any more, also if it leaves files open, as after an error: the others need not wait. */
int MPI_Finalize(void) {
    withdraw_all_signs();
    pthread_mutex_lock(&lock);
    for (struct known *known = all; known != NULL; known = known->next) {
        if (known->own != 0) {
            outcore_pool_sign_withdraw(known->pool, known->own);
            known->own = 0;
        }
    }
    pthread_mutex_unlock(&lock);
    return NEXT(MPI_Finalize)();
}

BOTH_NAMES(MPI_Finalize)
