/*
 * end_away.c - an end that is suspended, where its libraries can do that
 */
#include "peer.h"

#include <dlfcn.h>
#include <softhca/migrate.h>

#define PAUSE 9 /* s */

static void *call(const char *name, struct reply *r)
{
	void *fn = dlsym(RTLD_DEFAULT, name);

	if (!fn)
		refuse(r, EOPNOTSUPP, name);
	return fn;
}

void do_peers(const uint64_t *a, struct reply *r)
{
	int (*peers)(struct softhca_peers *);
	struct softhca_peers p;
	int err;

	(void)a;
	*(void **)&peers = call("softhca_migrate_peers", r);
	if (!peers)
		return;
	err = peers(&p);
	if (err) {
		refuse(r, err, "softhca_migrate_peers");
		return;
	}
	answer(r, p.all);
	answer(r, p.wait);
}

void do_away(const uint64_t *a, struct reply *r)
{
	int (*away)(unsigned seconds, int *seat), (*back)(void);
	int err;

	(void)a;
	*(void **)&away = call("softhca_suspend_for", r);
	*(void **)&back = call("softhca_resume", r);
	if (!away || !back)
		return;
	err = away(PAUSE, NULL);
	if (!err)
		err = back();
	if (err)
		refuse(r, err, "softhca_suspend_for");
}
