/*
 * gid.h - the GID of an address as it is written
 */
#ifndef SOFTHCA_TESTS_UNIT_GID_H
#define SOFTHCA_TESTS_UNIT_GID_H

#include "unit.h"

#include <arpa/inet.h>
#include <infiniband/verbs.h>

static inline union ibv_gid gid_of(const char *text)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	if (strchr(text, ':'))
		assert_int_equal(inet_pton(AF_INET6, text, gid.raw), 1);
	else
		assert_int_equal(inet_pton(AF_INET, text, gid.raw + 12), 1);
	return gid;
}

#endif
