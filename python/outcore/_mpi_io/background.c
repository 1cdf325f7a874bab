/* Nonblocking calls: a thread of each file moves their bytes, one call after the other. Other calls on the file wait for it.
 *
 * It completes the requests of MPI, which only a program with MPI_THREAD_MULTIPLE allows. In other programs, a nonblocking call
 * moves its bytes before it returns.
 */

#include "mpi_io.h"

#include <pthread.h>
#include <stdlib.h>

struct background {
    struct open_file *file;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job *first, *last; /* the first one is at work */
    int is_ending;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t living; /* jobs with a request that are not freed */

static int query(void *state, MPI_Status *status) {
    const struct job *job = state;
    set_status(status, job->moved);
    status->MPI_SOURCE = status->MPI_TAG = MPI_UNDEFINED;
    status->MPI_ERROR = job->code == MPI_SUCCESS || keep_failure(job) ? MPI_SUCCESS : job->code;
    return status->MPI_ERROR;
}

/* MPI and the thread of the file own a job, and the last owner frees it: MPICH ends requests before their completion. */
static int free_job(void *state) {
    struct job *job = state;
    if (__atomic_sub_fetch(&job->owners, 1, __ATOMIC_SEQ_CST) == 0) {
        __atomic_sub_fetch(&living, 1, __ATOMIC_SEQ_CST);
        free(job);
    }
    return MPI_SUCCESS;
}

/* A job is always carried out. */
static int cancel(void *state, int is_complete) {
    (void)state, (void)is_complete;
    return MPI_SUCCESS;
}

static void make_request(struct job *job, int owners) {
    job->owners = owners;
    __atomic_add_fetch(&living, 1, __ATOMIC_SEQ_CST);
    PMPI_Grequest_start(query, free_job, cancel, job, &job->request);
}

/* Whether this process has jobs that MPI has not freed. */
int has_jobs(void) {
    return __atomic_load_n(&living, __ATOMIC_SEQ_CST) > 0;
}

/* Makes the request of a job that has been done. */
void complete_job(struct job *job) {
    make_request(job, 1);
    PMPI_Grequest_complete(job->request);
}

static void *work(void *argument) {
    struct background *background = argument;
    pthread_mutex_lock(&background->lock);
    for (;;) {
        while (background->first == NULL && !background->is_ending) {
            pthread_cond_wait(&background->changed, &background->lock);
        }
        struct job *job = background->first;
        if (job == NULL) {
            break;
        }
        pthread_mutex_unlock(&background->lock);
        int class = transfer_access(background->file, job->is_write, &job->access, job->memory, &job->moved);
        job->code = class != 0 ? error_code(class) : MPI_SUCCESS;
        pthread_mutex_lock(&background->lock);
        background->first = job->next;
        pthread_cond_broadcast(&background->changed);
        pthread_mutex_unlock(&background->lock);
        PMPI_Grequest_complete(job->request);
        free_job(job);
        pthread_mutex_lock(&background->lock);
    }
    pthread_mutex_unlock(&background->lock);
    return NULL;
}

static struct background *begin(struct open_file *file) {
    struct background *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return NULL;
    }
    made->file = file;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    if (pthread_create(&made->thread, NULL, work, made) != 0) {
        free(made);
        return NULL;
    }
    return made;
}

/* Starts a job with its access and memory, if the program allows threads of its own and the memory is contiguous. Returns
 * whether it has begun. */
int start_job(struct open_file *file, struct job *job) {
    int level = MPI_THREAD_SINGLE;
    PMPI_Query_thread(&level);
    if (level != MPI_THREAD_MULTIPLE || job->access.bytes == 0 || job->access.memory.kind != RUN) {
        return 0;
    }
    pthread_mutex_lock(&lock);
    if (file->background == NULL) {
        file->background = begin(file);
    }
    struct background *background = file->background;
    pthread_mutex_unlock(&lock);
    if (background == NULL) {
        return 0;
    }
    make_request(job, 2);
    pthread_mutex_lock(&background->lock);
    if (background->first == NULL) {
        background->first = job;
    } else {
        background->last->next = job;
    }
    background->last = job;
    pthread_cond_broadcast(&background->changed);
    pthread_mutex_unlock(&background->lock);
    return 1;
}

/* Waits for all jobs of a file. */
void finish_jobs(struct open_file *file) {
    struct background *background = file->background;
    if (background != NULL) {
        pthread_mutex_lock(&background->lock);
        while (background->first != NULL) {
            pthread_cond_wait(&background->changed, &background->lock);
        }
        pthread_mutex_unlock(&background->lock);
    }
}

/* Ends the thread of a file, after all jobs. */
void end_jobs(struct open_file *file) {
    struct background *background = file->background;
    if (background != NULL) {
        pthread_mutex_lock(&background->lock);
        background->is_ending = 1;
        pthread_cond_broadcast(&background->changed);
        pthread_mutex_unlock(&background->lock);
        pthread_join(background->thread, NULL);
        free(background);
        file->background = NULL;
    }
}
