/* Calls of MPI-IO that move no data: sizes, views, pointers and modes. */

#include "mpi_io.h"

#include <string.h>

int MPI_File_get_size(MPI_File fh, MPI_Offset *size) {
    FILE_OR_PASS(MPI_File_get_size, (fh, size))
    int64_t length = outcore_file_length(file->file);
    *size = length >= 0 ? length : 0;
    return raise_error(fh, failed_call(file->context, length, file->path));
}

/* Changes the length by the first process; all have the same outcome. */
static int resize(struct open_file *file, MPI_Offset size, int (*resizes)(const outcore_file *, uint64_t)) {
    int same, class = is_same(file, size, &same);
    if (class != 0) {
        return class;
    }
    if (size < 0 || !same) {
        class = failed(MPI_ERR_ARG, "need the same size of at least 0 on all processes; pass it");
    } else if ((class = check_writable(file)) == 0 && file->rank == 0) {
        int result = resizes(file->file, (uint64_t)size);
        note_change(file);
        class = failed_call(file->context, result, file->path);
    }
    return agreed(file, class);
}

int MPI_File_set_size(MPI_File fh, MPI_Offset size) {
    FILE_OR_PASS(MPI_File_set_size, (fh, size))
    return raise_error(fh, resize(file, size, outcore_file_truncate));
}

int MPI_File_preallocate(MPI_File fh, MPI_Offset size) {
    FILE_OR_PASS(MPI_File_preallocate, (fh, size))
    return raise_error(fh, resize(file, size, outcore_file_reserve));
}

/* Makes the changes of this process durable, and those of the collectives in which it took part. */
int sync_changes(struct open_file *file) {
    int class = 0;
    if (__atomic_exchange_n(&file->has_changes, 0, __ATOMIC_SEQ_CST)) {
        class = failed_call(file->context, outcore_file_sync(file->file), file->path);
        if (class != 0) {
            note_change(file);
        }
    }
    return class;
}

int MPI_File_sync(MPI_File fh) {
    FILE_OR_PASS(MPI_File_sync, (fh))
    int class = check_writable(file);
    if (class == 0) {
        class = sync_changes(file);
    }
    return raise_error(fh, agreed(file, class));
}

int MPI_File_get_amode(MPI_File fh, int *amode) {
    FILE_OR_PASS(MPI_File_get_amode, (fh, amode))
    *amode = file->amode;
    return MPI_SUCCESS;
}

int MPI_File_get_group(MPI_File fh, MPI_Group *group) {
    FILE_OR_PASS(MPI_File_get_group, (fh, group))
    return PMPI_Comm_group(file->comm, group);
}

int MPI_File_get_info(MPI_File fh, MPI_Info *info_used) {
    FILE_OR_PASS(MPI_File_get_info, (fh, info_used))
    return PMPI_Info_dup(file->info, info_used);
}

int MPI_File_set_info(MPI_File fh, MPI_Info info) {
    FILE_OR_PASS(MPI_File_set_info, (fh, info))
    return raise_error(fh, agreed(file, check_hints(info)));
}

int MPI_File_set_view(MPI_File fh, MPI_Offset disp, MPI_Datatype etype, MPI_Datatype filetype, const char *datarep,
                      MPI_Info info) {
    FILE_OR_PASS(MPI_File_set_view, (fh, disp, etype, filetype, datarep, info))
    struct view *view = &file->view, made = {.etype = MPI_DATATYPE_NULL, .filetype = MPI_DATATYPE_NULL};
    MPI_Offset are_used = file->has_turns;
    int class = 0;
    if (disp == MPI_DISPLACEMENT_CURRENT && (file->amode & MPI_MODE_SEQUENTIAL) != 0) {
        class = move_shared(file, 0, &disp);
        disp = class == 0 && view->tree.bytes > 0 ? locate(&view->tree, disp * view->etype_bytes) : 0;
    }
    if (class == 0) {
        class = make_view(file->comm, disp, etype, filetype, datarep, &made);
    }
    if (class == 0) {
        class = check_hints(info);
    }
    class = agreed_most(file, class, &are_used);
    if (class != 0) {
        free_view(&made);
    } else {
        use_view(file, &made);
        file->pointer = file->first_shared = 0;
        if (are_used && file->rank == 0) {
            class = set_shared(file, 0);
        }
        class = agreed(file, class);
    }
    return raise_error(fh, class);
}

static MPI_Datatype copy_of(MPI_Datatype type) {
    MPI_Datatype copy = type;
    if (!is_named(type)) {
        PMPI_Type_dup(type, &copy);
    }
    return copy;
}

int MPI_File_get_view(MPI_File fh, MPI_Offset *disp, MPI_Datatype *etype, MPI_Datatype *filetype, char *datarep) {
    FILE_OR_PASS(MPI_File_get_view, (fh, disp, etype, filetype, datarep))
    *disp = file->view.displacement;
    *etype = copy_of(file->view.etype);
    *filetype = copy_of(file->view.filetype);
    strcpy(datarep, file->view.datarep);
    return MPI_SUCCESS;
}

static int moved_pointer(struct open_file *file, MPI_Offset offset, int whence, MPI_Offset now, MPI_Offset *pointer) {
    int class = 0;
    if (whence == MPI_SEEK_END) {
        class = end_of_view(file, &now);
    } else if (whence == MPI_SEEK_SET) {
        now = 0;
    } else if (whence != MPI_SEEK_CUR) {
        return failed(MPI_ERR_ARG, "need MPI_SEEK_SET, MPI_SEEK_CUR or MPI_SEEK_END, have %d; pass one of them", whence);
    }
    if (class == 0 && (__builtin_add_overflow(now, offset, pointer) || *pointer < 0)) {
        class = failed(MPI_ERR_ARG, "need a place that is not before the view; pass a larger offset");
    }
    return class;
}

int MPI_File_seek(MPI_File fh, MPI_Offset offset, int whence) {
    FILE_OR_PASS(MPI_File_seek, (fh, offset, whence))
    MPI_Offset pointer;
    int class = check_pointer(file);
    if (class == 0 && (class = moved_pointer(file, offset, whence, file->pointer, &pointer)) == 0) {
        file->pointer = pointer;
    }
    return raise_error(fh, class);
}

int MPI_File_get_position(MPI_File fh, MPI_Offset *offset) {
    FILE_OR_PASS(MPI_File_get_position, (fh, offset))
    *offset = file->pointer;
    return raise_error(fh, check_pointer(file));
}

int MPI_File_seek_shared(MPI_File fh, MPI_Offset offset, int whence) {
    FILE_OR_PASS(MPI_File_seek_shared, (fh, offset, whence))
    MPI_Offset now = 0, pointer;
    int class = check_pointer(file);
    if (class == 0) {
        class = agreed(file, 0);
    }
    if (class == 0 && file->rank == 0) {
        if (whence == MPI_SEEK_CUR) {
            class = move_shared(file, 0, &now);
        }
        if (class == 0 && (class = moved_pointer(file, offset, whence, now, &pointer)) == 0) {
            class = set_shared(file, pointer);
        }
    }
    return raise_error(fh, class == MPI_ERR_UNSUPPORTED_OPERATION ? class : agreed(file, class));
}

int MPI_File_get_position_shared(MPI_File fh, MPI_Offset *offset) {
    FILE_OR_PASS(MPI_File_get_position_shared, (fh, offset))
    int class = check_pointer(file);
    return raise_error(fh, class != 0 ? class : move_shared(file, 0, offset));
}

int MPI_File_get_byte_offset(MPI_File fh, MPI_Offset offset, MPI_Offset *disp) {
    FILE_OR_PASS(MPI_File_get_byte_offset, (fh, offset, disp))
    int class = check_pointer(file);
    int64_t position = 0;
    if (class == 0 && (offset < 0 || __builtin_mul_overflow(offset, file->view.etype_bytes, &position))) {
        class = failed(MPI_ERR_ARG, "need an offset from 0 on, have %lld; pass another", (long long)offset);
    }
    if (class == 0) {
        *disp = file->view.tree.bytes > 0 ? locate(&file->view.tree, position) : file->view.displacement;
    }
    return raise_error(fh, class);
}

int MPI_File_get_type_extent(MPI_File fh, MPI_Datatype datatype, MPI_Aint *extent) {
    FILE_OR_PASS(MPI_File_get_type_extent, (fh, datatype, extent))
    MPI_Aint low;
    if (datatype == MPI_DATATYPE_NULL || PMPI_Type_get_extent(datatype, &low, extent) != MPI_SUCCESS) {
        return raise_error(fh, failed(MPI_ERR_TYPE, "need a datatype, have none that is valid; pass one"));
    }
    return MPI_SUCCESS;
}

#if MPI_VERSION >= 4
int MPI_File_get_type_extent_c(MPI_File fh, MPI_Datatype datatype, MPI_Count *extent) {
    FILE_OR_PASS(MPI_File_get_type_extent_c, (fh, datatype, extent))
    MPI_Count low;
    if (datatype == MPI_DATATYPE_NULL || PMPI_Type_get_extent_c(datatype, &low, extent) != MPI_SUCCESS) {
        return raise_error(fh, failed(MPI_ERR_TYPE, "need a datatype, have none that is valid; pass one"));
    }
    return MPI_SUCCESS;
}
#endif

int MPI_File_set_atomicity(MPI_File fh, int flag) {
    FILE_OR_PASS(MPI_File_set_atomicity, (fh, flag))
    int same, class = is_same(file, flag != 0, &same);
    if (class == 0 && !same) {
        class = failed(MPI_ERR_NOT_SAME, "need the same flag on all processes; pass the same");
    } else if (class == 0) {
        file->is_atomic = flag != 0;
    }
    return raise_error(fh, class);
}

int MPI_File_get_atomicity(MPI_File fh, int *flag) {
    FILE_OR_PASS(MPI_File_get_atomicity, (fh, flag))
    *flag = file->is_atomic;
    return MPI_SUCCESS;
}

BOTH_NAMES(MPI_File_get_size)
BOTH_NAMES(MPI_File_set_size)
BOTH_NAMES(MPI_File_preallocate)
BOTH_NAMES(MPI_File_sync)
BOTH_NAMES(MPI_File_get_amode)
BOTH_NAMES(MPI_File_get_group)
BOTH_NAMES(MPI_File_get_info)
BOTH_NAMES(MPI_File_set_info)
BOTH_NAMES(MPI_File_set_view)
BOTH_NAMES(MPI_File_get_view)
BOTH_NAMES(MPI_File_seek)
BOTH_NAMES(MPI_File_get_position)
BOTH_NAMES(MPI_File_seek_shared)
BOTH_NAMES(MPI_File_get_position_shared)
BOTH_NAMES(MPI_File_get_byte_offset)
BOTH_NAMES(MPI_File_get_type_extent)
BOTH_NAMES(MPI_File_set_atomicity)
BOTH_NAMES(MPI_File_get_atomicity)
#if MPI_VERSION >= 4
BOTH_NAMES(MPI_File_get_type_extent_c)
#endif
