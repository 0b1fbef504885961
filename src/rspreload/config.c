/*
 * config.c - which sockets of a program become rsockets
 *
 * preload_config lists programs and kinds of sockets. Without it, all streams
 * become rsockets, and datagrams where RS_DGRAM asks for it: over UDP they have
 * a header of ours, which ordinary peers do not know.
 */
#include "os/config.h"
#include "rspreload/rspreload.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CONF "/etc/rdma/rsocket/preload_config"

static bool word_is(const char *word, const char *name)
{
	static const char *const prefixes[] = { "", "AF_", "PF_", "SOCK_",
						"IPPROTO_" };
	size_t i, len;

	for (i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
		len = strlen(prefixes[i]);
		if (!strncasecmp(word, prefixes[i], len) &&
		    !strcasecmp(word + len, name))
			return true;
	}
	return false;
}

static bool line_matches(const char *line, int family, int type)
{
	char prog[64], fam[16], typ[16], proto[16];

	if (sscanf(line, "%63s%15s%15s%15s", prog, fam, typ, proto) != 4 ||
	    prog[0] == '#')
		return false;
	return (!strcmp(prog, "*") ||
		!strncasecmp(prog, program_invocation_short_name,
			     strlen(prog))) &&
	       (!strcmp(fam, "*") ||
		word_is(fam, family == AF_INET ? "INET" : "INET6")) &&
	       (!strcmp(typ, "*") ||
		word_is(typ, type == SOCK_STREAM ? "STREAM" : "DGRAM")) &&
	       (!strcmp(proto, "*") ||
		word_is(proto, type == SOCK_STREAM ? "TCP" : "UDP"));
}

/* Bit 0 to 3: IPv4 streams, IPv6 streams, IPv4 datagrams, IPv6 datagrams. */
static unsigned wanted = 0x3;

static void read_config(void)
{
	static const int families[] = { AF_INET, AF_INET6, AF_INET, AF_INET6 };
	FILE *f = fopen(CONF, "re");
	unsigned found = 0;
	bool any = false;
	char line[256];
	const char *dgram = getenv("RS_DGRAM");
	int i;

	if (dgram && atoi(dgram))
		wanted = 0xf;
	if (!f)
		return;
	while (fgets(line, sizeof(line), f)) {
		any = any || (line[0] != '#' && line[0] != '\n');
		for (i = 0; i < 4; i++)
			if (line_matches(line, families[i],
					 i < 2 ? SOCK_STREAM : SOCK_DGRAM))
				found |= 1u << i;
	}
	fclose(f);
	if (any)
		wanted = found;
}

bool rsp_intercept(int family, int type, int protocol)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	bool stream = (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_STREAM;

	if (rsp_inside() || rsp_borrowed() ||
	    (family != AF_INET && family != AF_INET6))
		return false;
	/*
	 * Sockets of datagrams with flags belong to resolvers and other
	 * libraries, whose peers do not know our headers: they stay UDP, as
	 * with rdma-core.
	 */
	if (!stream && type != SOCK_DGRAM)
		return false;
	if (protocol && protocol != (stream ? IPPROTO_TCP : IPPROTO_UDP))
		return false;
	/* iWARP has connections alone. */
	if (!stream && config_get()->iwarp == IWARP_ONLY)
		return false;
	pthread_once(&once, read_config);
	return wanted & 1u << ((stream ? 0 : 2) + (family == AF_INET6));
}
