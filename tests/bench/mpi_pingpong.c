/*
 * mpi_pingpong.c - half a round trip between two ranks of MPI
 *
 *   mpirun -n 2 mpi_pingpong SIZE SECONDS
 *
 * Prints microseconds, the median.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 1000000, WARM_UP = 100 };

static float samples[SAMPLES];

static int compare(const void *a, const void *b)
{
	const float *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void exchange(char *buf, int size, int rank)
{
	if (!rank)
		MPI_Send(buf, size, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
	MPI_Recv(buf, size, MPI_CHAR, !rank, 0, MPI_COMM_WORLD,
		 MPI_STATUS_IGNORE);
	if (rank)
		MPI_Send(buf, size, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	int rank, size = argc > 2 ? atoi(argv[1]) : 8, n = 0;
	double seconds = argc > 2 ? atof(argv[2]) : 0.2, start, t, end;
	char *buf;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	buf = calloc(1, (size_t)size);
	for (int i = 0; buf && i < WARM_UP; i++)
		exchange(buf, size, rank);
	start = t = MPI_Wtime();
	/* The first byte says whether there is another round. */
	for (buf[0] = 1; buf[0];) {
		if (!rank)
			buf[0] = t < start + seconds && n < SAMPLES - 1;
		exchange(buf, size, rank);
		end = MPI_Wtime();
		samples[n++] = (float)((end - t) / 2 * 1e6);
		t = end;
	}
	qsort(samples, (size_t)n, sizeof(samples[0]), compare);
	if (!rank)
		printf("%.3f\n", (double)samples[n / 2]);
	free(buf);
	MPI_Finalize();
	return 0;
}
