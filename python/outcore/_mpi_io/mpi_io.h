/* The parts of the library that sends MPI-IO calls on files of pools to their servers.
 *
 * The library defines MPI_File_* over the profiling interface: calls on other files go to PMPI_File_* unchanged. A file of a
 * pool has a shadow, a small temporary file that MPI opened, so that its handle is valid for all of MPI. Inside, the library
 * calls PMPI_* only. It also defines the calls that complete requests, which give errors of its own requests to their files,
 * and those that start and end MPI.
 *
 * Functions that may fail return an MPI error class, or 0, and leave a text for `raise_error`.
 */

#ifndef OUTCORE_MPI_IO_H
#define OUTCORE_MPI_IO_H

#include <stdint.h>

/* The library exports the functions of MPI that it defines, and nothing else. */
#pragma GCC visibility push(default)
#include <mpi.h>
#pragma GCC visibility pop
#include <outcore.h>

/* ---- trees.c: bytes in nested strides, the form of all datatypes */

#define MOST_LEVELS 16

enum tree_kind { RUN, LOOP, LIST };

/* Bytes in the order of a datatype's map. A tree and its parts are never changed. */
struct tree {
    enum tree_kind kind;
    int64_t offset; /* added to all offsets below */
    int64_t bytes;
    /* LOOP: `child` repeated `count` times, `stride` bytes from start to start */
    int64_t count, stride;
    const struct tree *child;
    /* LIST: entry i lies at `offsets[i]`, and `ends[i]` bytes end with it. Without `children`, entries are runs. */
    int64_t entries;
    const int64_t *offsets, *ends;
    const struct tree *const *children;
};

/* Memory that is freed together. */
struct arena {
    struct block *blocks;
};

void *arena_alloc(struct arena *arena, uint64_t count, uint64_t bytes);
void arena_free(struct arena *arena);

/* Entries of a list that is being made. */
struct builder {
    struct arena *arena;
    int64_t entries, room;
    int64_t *offsets, *lengths;
    const struct tree **children;
    int has_children, failed;
};

struct tree run_tree(int64_t offset, int64_t bytes);
struct tree loop_tree(const struct tree *child, int64_t count, int64_t stride);
struct tree endless_tree(const struct tree *child, int64_t offset, int64_t extent);
struct builder builder_new(struct arena *arena, int64_t room);
void builder_add(struct builder *builder, int64_t offset, const struct tree *entry);
const struct tree *builder_end(struct builder *builder);
const struct tree *kept(struct arena *arena, struct tree tree);
int64_t entry_at(const struct tree *tree, int64_t position);
int64_t locate(const struct tree *tree, int64_t position);
int64_t bytes_below(const struct tree *tree, int64_t most, int64_t end);
int is_monotone(const struct tree *tree);

/* Receives the parts of a tree in order. Levels are from the outermost to the innermost. */
struct sink {
    int (*nested)(struct sink *sink, int64_t offset, int64_t run, int levels, const uint64_t *counts, const uint64_t *strides);
};

int emit(struct sink *sink, const struct tree *tree, int64_t base, int64_t from, int64_t to);

/* ---- pack.c: copies between memory of a datatype and contiguous memory */

void pack_bytes(const struct tree *tree, char *memory, int64_t from, int64_t to, char *packed);
void unpack_bytes(const struct tree *tree, char *memory, int64_t from, int64_t to, char *packed);

/* ---- types.c: datatypes */

int check_type(MPI_Comm comm, MPI_Datatype type);
int tree_of(MPI_Comm comm, MPI_Datatype type, const struct tree **tree);
int is_named(MPI_Datatype type);

/* ---- place.c: names of files, and connections */

struct place {
    char url[4096], path[4096];
    int is_in_pool, is_mounted, is_read_only;
};

struct open_file;
int find_place(const char *name, struct place *place);
int connect_pool(const char *url, struct open_file *file);

/* ---- next.c: the functions of MPI behind those of this library */

void *next_function(const char *name);

/* The function of MPI itself. */
#define NEXT(name) ((__typeof__(&name))next_function("P" #name))

/* Gives a function its name in the profiling interface too, which is the only one that some Fortran layers call. */
#define BOTH_NAMES(name) extern __typeof__(name) P##name __attribute__((alias(#name)));

/* ---- fit.c */

void require_same_mpi(void);
int check_fit(void);

/* ---- errors.c */

int failed(int class, const char *format, ...) __attribute__((format(printf, 2, 3)));
int failed_call(const outcore_context *context, int64_t result, const char *what);
int error_code(int class);
int raise_error(MPI_File handle, int class);

/* ---- open.c: files that are open */

struct view {
    MPI_Offset displacement;
    MPI_Datatype etype, filetype;
    int64_t etype_bytes;
    const struct tree *tile;
    struct tree tree; /* of the whole file, without an end */
    char datarep[MPI_MAX_DATAREP_STRING];
};

struct open_file {
    MPI_File handle; /* the shadow */
    MPI_Comm comm; /* that of the caller until `owns_comm` */
    int owns_comm, rank;
    outcore_context *context;
    outcore_pool *pool;
    double patience_s; /* after which something that does not answer counts as lost */
    outcore_file *file;
    char *path;
    char *turns; /* path of the file that orders uses of the shared pointer */
    int amode, is_atomic;
    int has_changes; /* of this process that may not be durable; threads change it */
    uint64_t first_sign; /* the sign of life of process 0 */
    int has_sign;        /* this process gives its sign of life */
    int is_broken, lost; /* a process is gone, and its rank, or -1 */
    uint64_t *peers;     /* during the opening: numbers of the processes' signs of life in the pool, 0 if unknown */
    int has_turns; /* this process may have made the files of `turns` */
    struct view view;
    MPI_Offset pointer, first_shared; /* in etypes */
    MPI_Info info;
    char *packed; /* memory for packed bytes, of `packed_bytes` */
    int64_t packed_bytes;
    int is_split; /* a split collective has begun */
    MPI_Status split_status;
    struct background *background; /* moves the bytes of nonblocking calls, or NULL */
    struct open_file *next;
};

struct open_file *find_file(MPI_File handle);
void withdraw_all_signs(void);
int open_shadow(MPI_File *handle);
int check_writable(const struct open_file *file);
int check_pointer(const struct open_file *file);

/* Finds the file of the handle `fh`. Calls on files that are in no pool go to MPI. */
#define FILE_OR_PASS_AT_ONCE(name, arguments) \
    struct open_file *file = find_file(fh);   \
    if (file == NULL) {                       \
        return NEXT(name) arguments;          \
    }

/* As well, after all nonblocking calls on the file. */
#define FILE_OR_PASS(name, arguments)     \
    FILE_OR_PASS_AT_ONCE(name, arguments) \
    finish_jobs(file);

/* ---- agreement.c */

enum combination { LARGEST, SUM, BEFORE };

double now_s(void);
void give_sign(struct open_file *file);
void withdraw_sign(struct open_file *file);
int leave(struct open_file *file, int lost);
int wait_for_all(struct open_file *file, MPI_Request *request);
int combine(struct open_file *file, enum combination how, int count, MPI_Offset *numbers);
int gather(struct open_file *file, int count, const MPI_Offset *numbers, MPI_Offset **all);
int class_of_all(MPI_Offset largest, int own);
int agreed_most(struct open_file *file, int class, MPI_Offset *number);
int agreed(struct open_file *file, int class);
int is_same(struct open_file *file, MPI_Offset number, int *same);
int draw(struct open_file *file, MPI_Offset numbers[2]);

static inline void note_change(struct open_file *file) {
    __atomic_store_n(&file->has_changes, 1, __ATOMIC_SEQ_CST);
}

int sync_changes(struct open_file *file);

/* ---- peers.c */

int know_peers(struct open_file *file);
void remember_peers(struct open_file *file, const MPI_Offset *told, int stride);
void forget_peers(struct open_file *file);

/* ---- view.c */

int make_view(MPI_Comm comm, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype, const char *datarep,
              struct view *view);
void use_view(struct open_file *file, const struct view *view);
void free_view(struct view *view);
int end_of_view(struct open_file *file, MPI_Offset *end);

/* ---- hints.c */

int check_hints(MPI_Info given);
int set_hints(struct open_file *file);
outcore_hints *layout_hints(const outcore_context *context, MPI_Info given);

/* ---- transfer.c */

/* Bytes of an access: positions in the view, and their places in memory. */
struct access {
    int64_t from, bytes;
    struct tree memory; /* unset without bytes */
};

int access_of(const struct open_file *file, MPI_Offset offset, MPI_Count count, MPI_Datatype type, struct access *access);
int transfer_access(struct open_file *file, int is_write, const struct access *access, char *memory, int64_t *moved);
int transfer(struct open_file *file, int is_write, MPI_Offset offset, void *memory, MPI_Count count, MPI_Datatype type,
             int64_t *moved);

/* ---- access.c */

void set_status(MPI_Status *status, int64_t moved);

/* ---- background.c */

/* A nonblocking call: the state of its request. */
struct job {
    struct open_file *file; /* which may be closed meanwhile */
    MPI_File handle;
    int is_write;
    struct access access;
    char *memory;
    int64_t moved;
    int code, owners; /* of its error; how many use it */
    MPI_Request request;
    struct job *next;
};

int start_job(struct open_file *file, struct job *job);
void complete_job(struct job *job);
void finish_jobs(struct open_file *file);
void end_jobs(struct open_file *file);
int has_jobs(void);

/* ---- completion.c */

int keep_failure(const struct job *job);

/* ---- collective.c */

/* Transfers of all processes; `class` is the error that this one has found before, or 0. */
int transfer_all(struct open_file *file, int class, int is_write, MPI_Offset offset, void *memory, MPI_Count count,
                 MPI_Datatype type, int64_t *moved);

/* ---- turns.c: accesses of processes one after the other */

int lock_bytes(struct open_file *file, int is_write, const struct access *access, uint64_t *lock);
int unlock_bytes(struct open_file *file, uint64_t lock, int class);
int move_shared(struct open_file *file, MPI_Offset by, MPI_Offset *before);
int set_shared(struct open_file *file, MPI_Offset to);
void remove_turns(struct open_file *file);

#endif
