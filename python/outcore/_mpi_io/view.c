/* The view of a file: which of its bytes a process sees, as one tree without an end. */

#include "mpi_io.h"

#include <stdio.h>
#include <string.h>

void free_view(struct view *view) {
    if (view->etype != MPI_DATATYPE_NULL && !is_named(view->etype)) {
        PMPI_Type_free(&view->etype);
    }
    if (view->filetype != MPI_DATATYPE_NULL && !is_named(view->filetype)) {
        PMPI_Type_free(&view->filetype);
    }
    view->etype = view->filetype = MPI_DATATYPE_NULL;
}

static int duplicate(MPI_Comm comm, MPI_Datatype type, MPI_Datatype *copy) {
    int class = check_type(comm, type);
    if (class != 0) {
        return class;
    }
    if (is_named(type)) {
        *copy = type;
        return 0;
    }
    if (PMPI_Type_dup(type, copy) != MPI_SUCCESS) {
        *copy = MPI_DATATYPE_NULL;
        return failed(MPI_ERR_TYPE, "need a datatype, have one that is invalid; pass another");
    }
    return 0;
}

/* Makes a view, for `use_view` or `free_view`. */
int make_view(MPI_Comm comm, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype, const char *datarep,
              struct view *view) {
    struct view made = {.displacement = displacement, .etype = MPI_DATATYPE_NULL, .filetype = MPI_DATATYPE_NULL};
    MPI_Count etype_bytes = 0, bytes = 0, low, extent;
    int class = duplicate(comm, etype, &made.etype);
    if (class == 0) {
        class = duplicate(comm, filetype, &made.filetype);
    }
    if (class == 0 && (displacement < 0 || datarep == NULL)) {
        class = failed(MPI_ERR_ARG, "need a displacement of at least 0 and a data representation; pass them");
    }
    if (class == 0 && strcmp(datarep, "native") != 0 && strcmp(datarep, "internal") != 0) {
        class = failed(MPI_ERR_UNSUPPORTED_DATAREP, "need the data representation native or internal, have '%s'; pass native",
                       datarep);
    }
    if (class == 0) {
        class = tree_of(comm, made.filetype, &made.tile);
    }
    if (class == 0) {
        PMPI_Type_size_x(made.etype, &etype_bytes);
        PMPI_Type_size_x(made.filetype, &bytes);
        PMPI_Type_get_extent_x(made.filetype, &low, &extent);
        if (etype_bytes == 0 ? bytes > 0 : bytes % etype_bytes != 0) {
            class = failed(MPI_ERR_ARG, "need a file type of whole elementary types of %lld bytes, have %lld bytes; use this "
                                        "elementary type to make it",
                           (long long)etype_bytes, (long long)bytes);
        } else if (bytes > 0 && (locate(made.tile, 0) < 0 || !is_monotone(made.tile) || extent < 0)) {
            class = failed(MPI_ERR_IO, "need a file type whose displacements are not negative and never decrease; sort its "
                                        "blocks");
        }
    }
    if (class != 0) {
        free_view(&made);
        return class;
    }
    made.etype_bytes = etype_bytes;
    made.tree = endless_tree(made.tile, displacement, extent);
    snprintf(made.datarep, sizeof made.datarep, "%s", datarep);
    *view = made;
    return 0;
}

/* Replaces the view of a file, but not its pointers. */
void use_view(struct open_file *file, const struct view *view) {
    free_view(&file->view);
    file->view = *view;
}

/* Gets the number of elementary types before the end of the file, in the view; a part counts as one. */
int end_of_view(struct open_file *file, MPI_Offset *end) {
    int64_t length = outcore_file_length(file->file);
    int class = failed_call(file->context, length, file->path);
    *end = 0;
    if (class == 0 && file->view.tree.bytes > 0 && file->view.etype_bytes > 0) {
        /* An offset is never smaller than its position, unless tiles overlap. */
        int64_t bytes = bytes_below(&file->view.tree, length, length);
        *end = (bytes + file->view.etype_bytes - 1) / file->view.etype_bytes;
    }
    return class;
}
