/*
 * test_dmabufs.c - regions of dma-bufs, with a kernel that makes them or without
 */
#include "reach.h"

#include <linux/dma-buf.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

/* dma-bufs: what is none is refused; the rest needs /dev/udmabuf. */
static void dmabuf(void **state)
{
	int fd = memfd_create("x", 0);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, PAGE), 0);
	errno = 0;
	assert_null(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, fd, 1));
	assert_int_equal(errno, EINVAL);
	assert_null(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, 1));
	assert_int_equal(errno, EBADF);
	/* As NCCL asks whether there are dma-bufs. */
	assert_null(ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0));
	assert_int_equal(errno, EBADF);
	assert_int_equal(errno, EBADF);
	assert_null(ibv_reg_dmabuf_mr(pd, 1, PAGE, 0, fd, 1));
	assert_int_equal(errno, EINVAL);
	assert_null(ibv_reg_dmabuf_mr(pd, 0, 0, 0, fd, 1));
	assert_null(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, fd, ALL_ACCESS & ~1));
	close(fd);
}

/* While played is set, memory files answer as dma-bufs do, and each access by
 * the CPU that begins is counted until it ends. */
static bool played;
static int accesses;

/* Of this program and of the libraries. */
int ioctl(int fd, unsigned long request, ...)
{
	struct dma_buf_sync *sync;
	va_list ap;

	va_start(ap, request);
	sync = va_arg(ap, void *);
	va_end(ap);
	if (!played || request != DMA_BUF_IOCTL_SYNC)
		return (int)syscall(SYS_ioctl, fd, request, sync);
	accesses += sync->flags & DMA_BUF_SYNC_END ? -1 : 1;
	return 0;
}

/* Descriptors that a program which this one executes would inherit. */
static int inherited(void)
{
	int fd, flags, n = 0;

	for (fd = 0; fd < 1024; fd++) {
		flags = fcntl(fd, F_GETFD);
		n += flags >= 0 && !(flags & FD_CLOEXEC);
	}
	return n;
}

/* A dma-buf of four pages, mapped at mem. */
static void dmabuf_region(int fd, uint8_t *mem)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_mr *mr;
	struct end a, b;
	int before;

	assert_null(ibv_reg_dmabuf_mr(pd, PAGE, 4 * PAGE, 0, fd, ALL_ACCESS));
	before = inherited();
	accesses = 0;
	mr = ibv_reg_dmabuf_mr(pd, PAGE, 2 * PAGE, 0x10000, fd, ALL_ACCESS);
	assert_non_null(mr);
	assert_int_equal(inherited(), before);
	close(fd); /* the region keeps it */
	pair_init(&a, &b, IBV_QPT_RC);
	fill(a.buf, 2 * PAGE, 5);
	wr.wr.rdma.remote_addr = 0x10000;
	wr.wr.rdma.rkey = mr->rkey;
	assert_int_equal(try_send(&a, &wr, 0, 2 * PAGE), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_SUCCESS);
	assert_memory_equal(mem + PAGE, a.buf, 2 * PAGE);
	assert_int_equal(mem[0] | mem[3 * PAGE], 0);
	wr.wr.rdma.remote_addr++;
	assert_int_equal(try_send(&a, &wr, 0, 2 * PAGE), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	end_fini(&a);
	end_fini(&b);
}

/* Where the kernel makes none, at least what we do with one. */
static void dmabuf_played(void **state)
{
	int fd = memfd_create("x", MFD_CLOEXEC);
	uint8_t *mem;

	(void)state;
	assert_int_equal(ftruncate(fd, 4 * PAGE), 0);
	mem = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(mem != MAP_FAILED);
	played = true;
	dmabuf_region(fd, mem);
	played = false;
	assert_int_equal(accesses, -1); /* the end that finds out what it is */
	munmap(mem, 4 * PAGE);
}

/* A dma-buf of the program's own memory, where the kernel makes them. */
static void udmabuf(void **state)
{
	int dev = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	struct udmabuf_create create = { .size = 4 * PAGE };
	uint8_t *mem;
	int fd;

	(void)state;
	if (dev < 0) {
		print_message("no /dev/udmabuf here: dma-bufs not tested\n");
		skip();
	}
	create.memfd = (uint32_t)memfd_create("x", MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate((int)create.memfd, 4 * PAGE), 0);
	assert_int_equal(fcntl((int)create.memfd, F_ADD_SEALS, F_SEAL_SHRINK),
			 0);
	mem = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED,
		   (int)create.memfd, 0);
	assert_true(mem != MAP_FAILED);
	fd = ioctl(dev, UDMABUF_CREATE, &create);
	assert_true(fd >= 0);
	dmabuf_region(fd, mem);
	munmap(mem, 4 * PAGE);
	close((int)create.memfd);
	close(dev);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(dmabuf),
		TEST(dmabuf_played),
		TEST(udmabuf),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
