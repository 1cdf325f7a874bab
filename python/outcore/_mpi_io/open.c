/* Files that are open: MPI_File_open, MPI_File_close and MPI_File_delete. */

#define _POSIX_C_SOURCE 200809L
#include "mpi_io.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct open_file *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns the file of a pool with a handle, or NULL if MPI itself has opened it. */
struct open_file *find_file(MPI_File handle) {
    pthread_mutex_lock(&lock);
    struct open_file *found = all;
    while (found != NULL && found->handle != handle) {
        found = found->next;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Withdraws this process's signs of life in all files. */
void withdraw_all_signs(void) {
    pthread_mutex_lock(&lock);
    for (struct open_file *file = all; file != NULL; file = file->next) {
        withdraw_sign(file);
    }
    pthread_mutex_unlock(&lock);
}

/* Refuses to change a file that is open for reading. */
int check_writable(const struct open_file *file) {
    if ((file->amode & MPI_MODE_RDONLY) == 0) {
        return 0;
    }
    return failed(MPI_ERR_READ_ONLY, "need a file for writing, have one for reading; open it with MPI_MODE_RDWR");
}

/* Refuses calls that need another place than that of the shared pointer, if the file is open for no others. */
int check_pointer(const struct open_file *file) {
    if ((file->amode & MPI_MODE_SEQUENTIAL) == 0) {
        return 0;
    }
    return failed(MPI_ERR_UNSUPPORTED_OPERATION, "need a file without MPI_MODE_SEQUENTIAL, have one with it; use the shared "
                                                 "pointer");
}

/* Opens a small temporary file by MPI, whose handle stands for the file. */
int open_shadow(MPI_File *handle) {
    const char *folder = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/outcore-mpi-io-XXXXXX", folder != NULL && folder[0] != '\0' ? folder : "/tmp");
    int descriptor = mkstemp(path);
    if (descriptor < 0) {
        return failed(MPI_ERR_IO, "need a folder for a temporary file, cannot make %s; set TMPDIR to a folder", path);
    }
    close(descriptor);
    int result = NEXT(MPI_File_open)(MPI_COMM_SELF, path, MPI_MODE_RDWR, MPI_INFO_NULL, handle);
    unlink(path);
    return result == MPI_SUCCESS ? 0 : failed(MPI_ERR_IO, "need a handle of MPI, it cannot open %s; set TMPDIR to a local "
                                                          "folder",
                                              path);
}

/* The first message of an opening: tells the others the sign of life of this process, and finds out whether all open a file in a
 * pool, in the same mode. `is_in_pool` becomes 0 if none does. */
static int compare(struct open_file *file, int class, const char *name, int *is_in_pool) {
    enum { CLASS, IN_POOL, AMODE, SIGN, COUNT };
    MPI_Offset sign = file->peers != NULL ? (MPI_Offset)file->peers[file->rank] : 0, *all, largest = 0;
    MPI_Offset own[COUNT] = {[CLASS] = class, [IN_POOL] = *is_in_pool, [AMODE] = file->amode, [SIGN] = sign};
    int in_pool = 0, same_mode = 0, size;
    int lost = gather(file, COUNT, own, &all);
    if (lost != 0) {
        /* MPI says why it cannot reach all processes of a file of its own. */
        return lost;
    }
    PMPI_Comm_size(file->comm, &size);
    for (const MPI_Offset *each = all; each < all + COUNT * size; each += COUNT) {
        largest = each[CLASS] > largest ? each[CLASS] : largest;
        in_pool += each[IN_POOL] != 0;
        same_mode += each[AMODE] == file->amode;
    }
    *is_in_pool = in_pool > 0 || largest != 0;
    if (largest != 0) {
        class = class_of_all(largest, class);
    } else if (in_pool > 0 && in_pool < size) {
        class = failed(MPI_ERR_NOT_SAME, "need a file of one pool on all processes, have '%s' in a pool on some only; mount the "
                                         "pool on all machines",
                       name);
    } else if (in_pool > 0 && same_mode < size) {
        class = failed(MPI_ERR_NOT_SAME, "need the same access mode on all processes; pass the same");
    } else {
        remember_peers(file, all + SIGN, COUNT);
    }
    free(all);
    return class;
}

static int check_amode(int amode, const struct place *place) {
    int ways = ((amode & MPI_MODE_RDONLY) != 0) + ((amode & MPI_MODE_WRONLY) != 0) + ((amode & MPI_MODE_RDWR) != 0);
    if (ways != 1 || ((amode & MPI_MODE_RDONLY) != 0 && (amode & (MPI_MODE_CREATE | MPI_MODE_EXCL)) != 0)
        || ((amode & MPI_MODE_RDWR) != 0 && (amode & MPI_MODE_SEQUENTIAL) != 0)) {
        return failed(MPI_ERR_AMODE, "need one of MPI_MODE_RDONLY, WRONLY and RDWR, and others that go with it, have %d; pass "
                                     "such a mode",
                      amode);
    }
    if (place->is_read_only && (amode & MPI_MODE_RDONLY) == 0) {
        return failed(MPI_ERR_READ_ONLY, "need a mount for writing, have a read-only one; mount it without --read-only");
    }
    return 0;
}

static int open_file(struct open_file *file, int is_creator, MPI_Info info) {
    int flags = (file->amode & MPI_MODE_RDWR) != 0 ? O_RDWR : (file->amode & MPI_MODE_WRONLY) != 0 ? O_WRONLY : O_RDONLY;
    outcore_hints *hints = NULL;
    if (is_creator) {
        flags |= (file->amode & MPI_MODE_CREATE) != 0 ? O_CREAT : 0;
        flags |= (file->amode & MPI_MODE_CREATE) != 0 && (file->amode & MPI_MODE_EXCL) != 0 ? O_EXCL : 0;
        hints = layout_hints(file->context, info);
    }
    int result = outcore_file_open(file->pool, file->path, flags, 0666, hints, &file->file);
    outcore_hints_free(hints);
    return failed_call(file->context, result, file->path);
}

/* Gives the files of turns and the signs of life new names, the same on all processes. */
static int name_new(struct open_file *file) {
    MPI_Offset salt[2];
    size_t room = strlen(file->path) + 80;
    int class = draw(file, salt);
    if (class != 0) {
        return class;
    }
    file->first_sign = (uint64_t)salt[0] >> 2;
    if ((file->turns = malloc(room)) == NULL) {
        return failed(MPI_ERR_NO_MEM, "need memory for a name; free some");
    }
    snprintf(file->turns, room, "%s.outcore-mpi-io-%llx-%llx", file->path, (unsigned long long)salt[0],
             (unsigned long long)salt[1]);
    return 0;
}

static struct open_file *new_file(MPI_Comm comm, int amode) {
    struct open_file *file = calloc(1, sizeof *file);
    if (file != NULL) {
        file->comm = comm;
        PMPI_Comm_rank(comm, &file->rank);
        file->amode = amode;
        file->lost = -1;
        file->handle = MPI_FILE_NULL;
        file->info = MPI_INFO_NULL;
        file->view.etype = file->view.filetype = MPI_DATATYPE_NULL;
    }
    return file;
}

/* Replaces the communicator of the caller by a duplicate. */
static int duplicate_comm(struct open_file *file) {
    MPI_Request request;
    /* After an error, MPI may still use its memory. */
    MPI_Comm *made = malloc(sizeof *made);
    if (made == NULL) {
        return leave(file, -1);
    }
    if (PMPI_Comm_idup(file->comm, made, &request) != MPI_SUCCESS) {
        free(made);
        return failed(MPI_ERR_COMM, "need a communicator that can be duplicated; pass another");
    }
    int class = wait_for_all(file, &request);
    if (class == 0) {
        PMPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN);
        file->comm = *made;
        file->owns_comm = 1;
        free(made);
    }
    return class;
}

/* Frees a file and those of its parts that exist. */
static void free_file(struct open_file *file) {
    outcore_file_close(file->file);
    free_view(&file->view);
    if (file->info != MPI_INFO_NULL) {
        PMPI_Info_free(&file->info);
    }
    if (file->handle != MPI_FILE_NULL) {
        NEXT(MPI_File_close)(&file->handle);
    }
    if (file->owns_comm && !file->is_broken) {
        PMPI_Comm_free(&file->comm);
    }
    free(file->packed);
    free(file->peers);
    free(file->path);
    free(file->turns);
    free(file);
}

/* Opens the file on all processes: the first one creates it, and the others follow. */
static int open_on_all(struct open_file *file, MPI_Info info) {
    MPI_Offset has_no_sign, pointer;
    int class = agreed(file, check_hints(info));
    if (class != 0) {
        return class;
    }
    class = name_new(file);
    if (class == 0 && file->rank == 0) {
        class = open_file(file, 1, info);
    }
    if ((class = agreed(file, class)) != 0) {
        return class;
    }
    if (file->rank != 0) {
        class = open_file(file, 0, info);
    }
    if (class == 0) {
        class = open_shadow(&file->handle);
    }
    if (class == 0) {
        class = make_view(file->comm, 0, MPI_BYTE, MPI_BYTE, "native", &file->view);
    }
    if (class == 0 && PMPI_Info_create(&file->info) != MPI_SUCCESS) {
        class = failed(MPI_ERR_NO_MEM, "need memory for hints; free some");
    }
    if (class == 0) {
        class = set_hints(file);
    }
    if (class == 0 && (file->amode & MPI_MODE_APPEND) != 0) {
        class = end_of_view(file, &file->pointer);
    }
    if (class == 0) {
        give_sign(file);
    }
    pointer = file->rank == 0 ? file->pointer : 0;
    if ((class = agreed_most(file, class, &pointer)) != 0) {
        return class;
    }
    file->pointer = file->first_shared = pointer;
    has_no_sign = !file->has_sign;
    class = agreed_most(file, 0, &has_no_sign);
    if (has_no_sign) {
        withdraw_sign(file);
    }
    free(file->peers);
    file->peers = NULL;
    return class;
}

int MPI_File_open(MPI_Comm comm, const char *filename, int amode, MPI_Info info, MPI_File *fh) {
    struct place place = {.is_in_pool = 0};
    int is_inter = 0;
    require_same_mpi();
    if (comm == MPI_COMM_NULL || filename == NULL || PMPI_Comm_test_inter(comm, &is_inter) != MPI_SUCCESS || is_inter) {
        return NEXT(MPI_File_open)(comm, filename, amode, info, fh);
    }
    struct open_file *file = new_file(comm, amode);
    if (file == NULL) {
        return raise_error(MPI_FILE_NULL, failed(MPI_ERR_NO_MEM, "need memory for a file; free some"));
    }
    int class = find_place(filename, &place);
    if (class == 0 && (file->path = strdup(place.is_in_pool ? place.path : filename)) == NULL) {
        class = failed(MPI_ERR_NO_MEM, "need memory for a name; free some");
    }
    if (class == 0 && place.is_in_pool && (class = check_fit()) == 0 && (class = connect_pool(place.url, file)) == 0) {
        class = know_peers(file);
    }
    class = compare(file, class, filename, &place.is_in_pool);
    if (!place.is_in_pool) {
        free_file(file);
        return NEXT(MPI_File_open)(comm, filename, amode, info, fh);
    }
    *fh = MPI_FILE_NULL;
    if (class == 0 && (class = check_amode(amode, &place)) == 0) {
        class = duplicate_comm(file);
    }
    if (class == 0) {
        class = open_on_all(file, info);
    }
    if (class != 0) {
        free_file(file);
        return raise_error(MPI_FILE_NULL, class);
    }
    pthread_mutex_lock(&lock);
    file->next = all;
    all = file;
    pthread_mutex_unlock(&lock);
    *fh = file->handle;
    return MPI_SUCCESS;
}

int MPI_File_close(MPI_File *fh) {
    struct open_file *file = fh != NULL ? find_file(*fh) : NULL, **place;
    MPI_Offset is_used;
    int class = 0;
    if (file == NULL) {
        return NEXT(MPI_File_close)(fh);
    }
    end_jobs(file);
    /* Data are as durable as after MPI_File_sync, which MPI's own files need not be. */
    class = sync_changes(file);
    is_used = file->has_turns;
    class = agreed_most(file, class, &is_used);
    if (!file->is_broken) {
        if (file->rank == 0 && is_used) {
            remove_turns(file);
        }
        if (file->rank == 0 && (file->amode & MPI_MODE_DELETE_ON_CLOSE) != 0) {
            int result = outcore_remove(file->pool, file->path);
            class = class != 0 ? class : failed_call(file->context, result, file->path);
        }
        /* A process without a sign may have left this call already. */
        int last = agreed(file, class);
        class = file->is_broken ? class : last;
    }
    pthread_mutex_lock(&lock);
    for (place = &all; *place != file;) {
        place = &(*place)->next;
    }
    *place = file->next;
    pthread_mutex_unlock(&lock);
    int code = raise_error(file->handle, class);
    free_file(file);
    *fh = MPI_FILE_NULL;
    return code;
}

int MPI_File_delete(const char *filename, MPI_Info info) {
    struct place place = {.is_in_pool = 0};
    struct open_file none;
    require_same_mpi();
    int class = filename != NULL ? find_place(filename, &place) : 0;
    if (class == 0 && !place.is_in_pool) {
        return NEXT(MPI_File_delete)(filename, info);
    }
    if (class == 0 && place.is_read_only) {
        class = failed(MPI_ERR_READ_ONLY, "need a mount for writing, have a read-only one; mount it without --read-only");
    }
    if (class == 0 && place.is_mounted) {
        /* By the kernel, which would keep the name for a while. */
        return NEXT(MPI_File_delete)(filename, info);
    }
    if (class == 0 && (class = connect_pool(place.url, &none)) == 0) {
        outcore_status status = {.is_directory = 0};
        if (outcore_stat(none.pool, place.path, &status) == 0 && status.is_directory) {
            class = failed(MPI_ERR_BAD_FILE, "need a file, have the directory '%s'; remove it by 'outcore rm'", filename);
        } else {
            class = failed_call(none.context, outcore_remove(none.pool, place.path), filename);
        }
    }
    return raise_error(MPI_FILE_NULL, class);
}

BOTH_NAMES(MPI_File_open)
BOTH_NAMES(MPI_File_close)
BOTH_NAMES(MPI_File_delete)
