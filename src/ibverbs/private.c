/*
 * private.c - what the distribution's provider libraries need in order to load
 *
 * Clients link with libmlx5.so.1 or libefa.so.1 for functions of hardware that
 * is not there, and those import the private node of libibverbs. Nearly all of
 * it is never called and is a generated stub (abi/ibverbs.txt); this file has
 * the few that are called. The private node changes its number with rdma-core
 * releases; the same code serves all numbers.
 */
#include "qp/opcode.h"
#include "verbs/device.h"

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct verbs_context;
struct verbs_device_ops;
struct verbs_sysfs_dev;

/* A definition may have one default version and any number of others, each
 * under a name of its own: clang's assembler insists. */
#define VERSION(fn, name, at, node)                                            \
	extern __typeof__(fn) fn##_##node __attribute__((alias(#fn)));         \
	__asm__(".symver " #fn "_" #node "," #name at "IBVERBS_"               \
		"PRIVATE_" #node)

#define PRIVATE(fn, name)                                                      \
	VERSION(fn, name, "@@", 34);                                           \
	VERSION(fn, name, "@", 57);                                            \
	VERSION(fn, name, "@", 59);                                            \
	VERSION(fn, name, "@", 64);                                            \
	VERSION(fn, name, "@", 65)

/*
 * Called by the constructors of libmlx5 and others, before main(). Drivers are
 * ignored, since there is no hardware for them.
 */
void private_register_driver(const struct verbs_device_ops *ops);

void private_register_driver(const struct verbs_device_ops *ops)
{
	(void)ops;
}

VERSION(private_register_driver, verbs_register_driver_34, "@@", 34);
VERSION(private_register_driver, verbs_register_driver_57, "@@", 57);
VERSION(private_register_driver, verbs_register_driver_59, "@@", 59);
VERSION(private_register_driver, verbs_register_driver_64, "@@", 64);
VERSION(private_register_driver, verbs_register_driver_65, "@@", 65);

/*
 * The providers' log. They report that a device is not theirs, which is always
 * so under softhca; printed only if VERBS_LOG_LEVEL asks for it, as in
 * rdma-core.
 */
void private_log(struct verbs_context *ctx, uint32_t level, const char *fmt,
		 ...) __attribute__((format(printf, 3, 4)));

void private_log(struct verbs_context *ctx, uint32_t level, const char *fmt,
		 ...)
{
	const char *want = getenv("VERBS_LOG_LEVEL");
	va_list ap;

	(void)ctx;
	if (!want || strtoul(want, NULL, 10) < level)
		return;
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
}

PRIVATE(private_log, __verbs_log);

/* The values of sysfs gid_attrs/types, not those of struct ibv_gid_entry. The
 * first is also that of InfiniBand and of iWARP. */
enum { SYSFS_GID_TYPE_ROCE_V1, SYSFS_GID_TYPE_ROCE_V2 };

int private_query_gid_type(struct ibv_context *context, uint8_t port_num,
			   unsigned int index, int *type);

int private_query_gid_type(struct ibv_context *context, uint8_t port_num,
			   unsigned int index, int *type)
{
	union ibv_gid gid;

	if (ibv_query_gid(context, port_num, (int)index, &gid)) {
		errno = EINVAL;
		return -1;
	}
	*type = shca_gid_type(to_device(context->device), index) ==
				IBV_GID_TYPE_ROCE_V2 ?
			SYSFS_GID_TYPE_ROCE_V2 :
			SYSFS_GID_TYPE_ROCE_V1;
	return 0;
}

PRIVATE(private_query_gid_type, ibv_query_gid_type);

/*
 * Reads a file of the device's sysfs directory. It is given by a structure that
 * only libibverbs creates, and ours never does.
 */
int private_read_ibdev_sysfs_file(char *buf, size_t size,
				  struct verbs_sysfs_dev *dev, const char *fmt,
				  ...) __attribute__((format(printf, 4, 5)));

int private_read_ibdev_sysfs_file(char *buf, size_t size,
				  struct verbs_sysfs_dev *dev, const char *fmt,
				  ...)
{
	(void)dev;
	(void)fmt;
	if (size)
		buf[0] = '\0';
	errno = ENOENT;
	return -1;
}

PRIVATE(private_read_ibdev_sysfs_file, ibv_read_ibdev_sysfs_file);

/* The names of the opcodes, as clients print them. */
const char *private_wr_opcode_str(enum ibv_wr_opcode opcode);

const char *private_wr_opcode_str(enum ibv_wr_opcode opcode)
{
	static const char *const words[] = {
#define WORD(op, ...) [IBV_WR_##op] = #op,
		QP_OPCODES(WORD)[IBV_WR_TSO] = "TSO",
		[IBV_WR_DRIVER1] = "DRIVER1",
	};
	const size_t n = sizeof(words) / sizeof(words[0]);

	return opcode < n && words[opcode] ? words[opcode] : "unknown";
}

PRIVATE(private_wr_opcode_str, ibv_wr_opcode_str);

/* Data: whether destroying an object of an unplugged device may succeed. */
extern bool private_allow_disassociate_destroy;
bool private_allow_disassociate_destroy;

PRIVATE(private_allow_disassociate_destroy, verbs_allow_disassociate_destroy);
