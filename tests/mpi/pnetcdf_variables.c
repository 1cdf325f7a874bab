/* A program over PnetCDF that knows nothing of pools: all processes write and read fixed and record variables.
 *
 *     pnetcdf_variables write|read FILE
 *
 * With "write", it makes the file, and reads it before it closes it. Each process prints "well", or the fault.
 */

#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 2
#define X 4 /* Rows of each process. */
#define Y 6
#define Z 5
#define TIMES 3
#define MOST_PROCESSES 64

static int rank, size, file, fixed, dense, pressure, count, late, dims[4];

static void check(int result, int line) {
    if (result != NC_NOERR) {
        fprintf(stderr, "rank %d, line %d: %s\n", rank, line, ncmpi_strerror(result));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

#define CHECK(call) check((call), __LINE__)

/* The number at a place of a variable. */
static int number(int time, int x, int y, int z) { return ((time * 100 + x) * 100 + y) * 10 + z; }

static void expect(double found, int expected, int line) {
    if (found != expected) {
        printf("rank %d, line %d: %g instead of %d\n", rank, line, found, expected);
    }
}

#define EXPECT(found, expected) expect((found), (expected), __LINE__)

static void define(void) {
    const char title[] = "written by all processes";
    CHECK(ncmpi_def_dim(file, "time", NC_UNLIMITED, &dims[0]));
    CHECK(ncmpi_def_dim(file, "x", X * size, &dims[1]));
    CHECK(ncmpi_def_dim(file, "y", Y, &dims[2]));
    CHECK(ncmpi_def_dim(file, "z", Z, &dims[3]));
    CHECK(ncmpi_def_var(file, "fixed", NC_DOUBLE, 3, dims + 1, &fixed));
    CHECK(ncmpi_def_var(file, "dense", NC_INT, 2, dims + 1, &dense));
    CHECK(ncmpi_def_var(file, "pressure", NC_FLOAT, 3, dims, &pressure));
    CHECK(ncmpi_def_var(file, "count", NC_SHORT, 2, dims, &count));
    CHECK(ncmpi_put_att_text(file, NC_GLOBAL, "title", sizeof title, title));
    CHECK(ncmpi_enddef(file));
}

/* A collective access to a block with guard cells in memory: two on each side. */
static void move_guarded(int is_write) {
    enum { PADDED_Y = Y + 2 * GUARD, PADDED_Z = Z + 2 * GUARD, CELLS = (X + 2 * GUARD) * PADDED_Y * PADDED_Z };
    int sizes[3] = {X + 2 * GUARD, PADDED_Y, PADDED_Z}, counts[3] = {X, Y, Z}, starts[3] = {GUARD, GUARD, GUARD};
    MPI_Offset start[3] = {X * rank, 0, 0}, counted[3] = {X, Y, Z};
    double *block = malloc(CELLS * sizeof *block);
    MPI_Datatype memory;
    MPI_Type_create_subarray(3, sizes, counts, starts, MPI_ORDER_C, MPI_DOUBLE, &memory);
    MPI_Type_commit(&memory);
    for (int i = 0; i < CELLS; i++) {
        int x = i / PADDED_Y / PADDED_Z, y = i / PADDED_Z % PADDED_Y, z = i % PADDED_Z;
        block[i] = is_write ? number(0, X * rank + x, y, z) : -1;
    }
    if (is_write) {
        CHECK(ncmpi_put_vara_all(file, fixed, start, counted, block, 1, memory));
    } else {
        CHECK(ncmpi_get_vara_all(file, fixed, start, counted, block, 1, memory));
        for (int i = 0; i < CELLS; i++) {
            int x = i / PADDED_Y / PADDED_Z, y = i / PADDED_Z % PADDED_Y, z = i % PADDED_Z;
            int is_inside = x >= GUARD && x < X + GUARD && y >= GUARD && y < Y + GUARD && z >= GUARD && z < Z + GUARD;
            EXPECT(block[i], is_inside ? number(0, X * rank + x, y, z) : -1);
        }
    }
    MPI_Type_free(&memory);
    free(block);
}

/* Each process alone, every second column of its rows, and then the others. */
static void write_alone(void) {
    int numbers[X][Y / 2];
    CHECK(ncmpi_begin_indep_data(file));
    for (int odd = 0; odd < 2; odd++) {
        MPI_Offset start[2] = {X * rank, odd}, counted[2] = {X, Y / 2}, stride[2] = {1, 2};
        for (int i = 0; i < X * Y / 2; i++) {
            numbers[i / (Y / 2)][i % (Y / 2)] = number(1, X * rank + i / (Y / 2), i % (Y / 2) * 2 + odd, 0);
        }
        CHECK(ncmpi_put_vars_int(file, dense, start, counted, stride, &numbers[0][0]));
    }
    CHECK(ncmpi_end_indep_data(file));
}

/* Records of two variables, which lie one behind the other in the file, by requests that wait together. */
static void write_records(void) {
    float numbers[TIMES][X][Y];
    short counts[TIMES][X];
    int requests[2 * TIMES], states[2 * TIMES];
    CHECK(ncmpi_buffer_attach(file, sizeof numbers));
    for (int time = 0; time < TIMES; time++) {
        MPI_Offset start[3] = {time, X * rank, 0}, counted[3] = {1, X, Y};
        for (int i = 0; i < X * Y; i++) {
            numbers[time][i / Y][i % Y] = (float)number(time, X * rank + i / Y, i % Y, 2);
            counts[time][i / Y] = (short)(time * 100 + X * rank + i / Y);
        }
        CHECK(ncmpi_bput_vara_float(file, pressure, start, counted, &numbers[time][0][0], &requests[2 * time]));
        CHECK(ncmpi_iput_vara_short(file, count, start, counted, counts[time], &requests[2 * time + 1]));
    }
    CHECK(ncmpi_wait_all(file, 2 * TIMES, requests, states));
    for (int i = 0; i < 2 * TIMES; i++) {
        CHECK(states[i]);
    }
    CHECK(ncmpi_buffer_detach(file));
}

/* A later variable and a longer header move the data in the file. */
static void extend(void) {
    MPI_Offset start[2] = {X * rank, 0}, counted[2] = {X, Z};
    int places[2] = {dims[1], dims[3]}, ends[X * Z];
    for (int i = 0; i < X * Z; i++) {
        ends[i] = number(3, X * rank + i / Z, 0, i % Z);
    }
    CHECK(ncmpi_sync(file));
    CHECK(ncmpi_redef(file));
    CHECK(ncmpi_def_var(file, "late", NC_INT, 2, places, &late));
    CHECK(ncmpi_def_var_fill(file, late, 0, NULL));
    CHECK(ncmpi_enddef(file));
    /* The last process has no data here, and its rows keep the fill value. */
    if (rank == size - 1) {
        counted[0] = 0;
    }
    CHECK(ncmpi_put_vara_int_all(file, late, start, counted, ends));
}

static void compare(void) {
    enum { ROWS = X * MOST_PROCESSES };
    static float all[TIMES][ROWS][Y];
    static short counts[TIMES][ROWS];
    static int numbers[Y][ROWS], ends[ROWS][Z];
    MPI_Offset start[2] = {0, 0}, rows[2] = {X * size, Y}, ends_of[2] = {X * size, Z}, stride[2] = {1, 1}, turned[2] = {1, ROWS};
    MPI_Offset times;
    int requests[2], states[2];
    CHECK(ncmpi_inq_dimlen(file, dims[0], &times));
    EXPECT((double)times, TIMES);
    move_guarded(0);
    for (int time = 0; time < TIMES; time++) {
        MPI_Offset one[3] = {time, 0, 0}, each[3] = {1, X * size, Y};
        CHECK(ncmpi_iget_vara_float(file, pressure, one, each, &all[time][0][0], &requests[0]));
        CHECK(ncmpi_iget_vara_short(file, count, one, each, counts[time], &requests[1]));
        CHECK(ncmpi_wait_all(file, 2, requests, states));
    }
    /* Transposed. */
    CHECK(ncmpi_get_varm_int_all(file, dense, start, rows, stride, turned, &numbers[0][0]));
    CHECK(ncmpi_begin_indep_data(file));
    CHECK(ncmpi_get_vara_int(file, late, start, ends_of, &ends[0][0]));
    CHECK(ncmpi_end_indep_data(file));
    for (int x = 0; x < X * size; x++) {
        for (int y = 0; y < Y; y++) {
            EXPECT(numbers[y][x], number(1, x, y, 0));
            for (int time = 0; time < TIMES; time++) {
                EXPECT(all[time][x][y], number(time, x, y, 2));
                EXPECT(counts[time][x], time * 100 + x);
            }
        }
        for (int z = 0; z < Z; z++) {
            EXPECT(ends[x][z], x < X * (size - 1) ? number(3, x, 0, z) : NC_FILL_INT);
        }
    }
}

static void find_variables(void) {
    CHECK(ncmpi_inq_dimid(file, "time", &dims[0]));
    CHECK(ncmpi_inq_varid(file, "fixed", &fixed));
    CHECK(ncmpi_inq_varid(file, "dense", &dense));
    CHECK(ncmpi_inq_varid(file, "pressure", &pressure));
    CHECK(ncmpi_inq_varid(file, "count", &count));
    CHECK(ncmpi_inq_varid(file, "late", &late));
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 3 || size > MOST_PROCESSES) {
        return 2;
    }
    if (strcmp(argv[1], "write") == 0) {
        CHECK(ncmpi_create(MPI_COMM_WORLD, argv[2], NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
        define();
        move_guarded(1);
        write_alone();
        write_records();
        extend();
    } else {
        CHECK(ncmpi_open(MPI_COMM_WORLD, argv[2], NC_NOWRITE, MPI_INFO_NULL, &file));
        find_variables();
    }
    compare();
    CHECK(ncmpi_close(file));
    MPI_Finalize();
    printf("well\n");
    return 0;
}
