/* Hints of MPI_Info: those for the layout of a new file go to the pool. MPI_File_get_info has the values in force. */

#include "mpi_io.h"

#include <stdio.h>

#define LAYOUT_HINTS {"striping_factor", "striping_unit", "start_iodevice"}

static int get(MPI_Info info, const char *name, char *value) {
    int is_found = 0;
    value[0] = '\0';
    if (info != MPI_INFO_NULL) {
        PMPI_Info_get(info, name, MPI_MAX_INFO_VAL - 1, value, &is_found);
    }
    return is_found;
}

/* The hints for the layout of a new file, or NULL for none. */
outcore_hints *layout_hints(const outcore_context *context, MPI_Info given) {
    static const char *const names[] = LAYOUT_HINTS;
    outcore_hints *hints = NULL;
    char value[MPI_MAX_INFO_VAL];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (get(given, names[i], value) && (hints != NULL || outcore_hints_new(context, &hints) == 0)) {
            outcore_hints_set(hints, names[i], value);
        }
    }
    return hints;
}

int check_hints(MPI_Info given) {
    int count;
    if (given != MPI_INFO_NULL && PMPI_Info_get_nkeys(given, &count) != MPI_SUCCESS) {
        return failed(MPI_ERR_INFO, "need hints, have an invalid MPI_Info; pass MPI_INFO_NULL");
    }
    return 0;
}

/* Sets the hints in force. Servers take the place of the nodes of collective buffering. As the standard says, hints without
 * effect are left out. */
int set_hints(struct open_file *file) {
    outcore_status status;
    char value[MPI_MAX_INFO_VAL];
    int class = failed_call(file->context, outcore_stat(file->pool, file->path, &status), file->path);
    if (class == 0) {
        snprintf(value, sizeof value, "%u", status.stripe_count);
        PMPI_Info_set(file->info, "striping_factor", value);
        PMPI_Info_set(file->info, "cb_nodes", value);
        snprintf(value, sizeof value, "%llu", (unsigned long long)status.stripe_unit_bytes);
        PMPI_Info_set(file->info, "striping_unit", value);
        snprintf(value, sizeof value, "%u", status.first_server);
        PMPI_Info_set(file->info, "start_iodevice", value);
    }
    return class;
}
