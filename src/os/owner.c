/*
 * owner.c - whose a file in a shared directory is
 */
#include "owner.h"

#include "base/sys.h"

#include <stdio.h>
#include <string.h>

/* A user of this namespace as its parent sees it: user_namespaces(7). */
static bool map_uid(uid_t uid, unsigned *outside)
{
	int fd = sys_open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC, 0);
	unsigned first, parent, count;
	char map[4096], *line = map;
	ssize_t len;

	*outside = uid;
	if (fd < 0)
		return true;
	len = sys_read(fd, map, sizeof(map) - 1);
	sys_close(fd);
	map[len > 0 ? len : 0] = '\0';
	while (sscanf(line, "%u %u %u", &first, &parent, &count) == 3) {
		if (uid >= first && uid - first < count) {
			*outside = parent + (uid - first);
			return true;
		}
		line += strcspn(line, "\n");
		line += *line == '\n';
	}
	return false;
}

unsigned owner_uid(void)
{
	unsigned outside;

	map_uid(geteuid(), &outside);
	return outside;
}

bool owner_unknown(uid_t uid)
{
	unsigned outside;

	return !map_uid(uid, &outside);
}

bool owner_private(int fd, const struct stat *st)
{
	/* Only the true owner may set the mode, even to what it is (and root,
	 * whose number is not taken for another's). */
	return st->st_uid == geteuid() && !(st->st_mode & 077) &&
	       !fchmod(fd, st->st_mode & 07777);
}
