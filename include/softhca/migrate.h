/*
 * softhca/migrate.h - a process lets go of its network, and takes it up again
 *
 * For programs that move themselves, or are moved by a checkpoint: between the two
 * calls the process has no socket, no shared memory, no lock and no thread of
 * softhca's, so what can be saved of any process can be saved of it. Its objects
 * stay, at their addresses and with their numbers. docs/MIGRATION.md has what
 * moves, and what does not.
 */
#ifndef SOFTHCA_MIGRATE_H
#define SOFTHCA_MIGRATE_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Stops everything that the devices of this process do. Other threads go on: what
 * they post waits, polls find nothing, who waits for an event waits. Time stands
 * still for every timeout of a queue pair or connection of this process; those of
 * its peers run. Calls that need the host (a queue pair that connects, a new
 * listener, an address that is bound) wait until the process goes on. No object is
 * made or destroyed while this call runs.
 *
 * Returns 0, or an errno value, and then everything goes on as before:
 *	ENODEV		no device is open
 *	EALREADY	it is suspended
 *	EOPNOTSUPP	something cannot be suspended; softhca_migrate_why() says what
 *	EBUSY		a thread of the program does not leave the network alone; or
 *			a message to a queue pair of an XRC domain, for another
 *			process of this host, has begun and does not end
 *	ENOMEM, ETIMEDOUT (the processes of this host do not let go of their lock)
 */
int softhca_suspend(void);

/*
 * The same, and the process keeps its place among those of this user and host: no
 * other gets its queue pair numbers and listeners, and peers of the host wait for
 * it instead of giving up. *seat is a descriptor that stands for that, or -1 where
 * there are no other processes to be seen. The place is there as long as anybody
 * has it, or a copy (SCM_RIGHTS, pidfd_getfd(2)): who moves the process takes one,
 * as the file lock behind it cannot be saved with a process, and this process then
 * closes its own; if it does not, softhca_resume() does. It is not closed after
 * that. A resume that fails gives the place up.
 */
int softhca_suspend_seated(int *seat);

/*
 * The same (seat may be NULL: without one), and peers that use softhca as well,
 * here and on other hosts, are asked to wait for so many seconds (1 to 3600) at
 * most: they send nothing and use up no retry, until this process goes on and says
 * so, with another address perhaps. They answer before anything stops here. Those who do not
 * within 0.75 s are taken for others, which are not told anything.
 *	EINVAL		seconds
 *	EPERM		the file that SOFTHCA_MIGRATE_SECRET names is not to be used
 */
int softhca_suspend_for(unsigned seconds, int *seat);

/*
 * Which peers of reliable connections would wait: they are asked whether they
 * understand. The others bear what their retries take: at least patience_ms, if
 * their attributes are those of the queue pairs here (timeout, retry_cnt); UINT_MAX:
 * there is no limit, or there are none. 0 or an errno value, as above.
 */
struct softhca_peers {
	unsigned all; /* queue pairs that are connected */
	unsigned wait; /* those whose peer would */
	unsigned patience_ms;
	int other_secret; /* some have another SOFTHCA_MIGRATE_SECRET, or none */
};
int softhca_migrate_peers(struct softhca_peers *peers);

/*
 * Goes on, on this host or another: with the same queue pair numbers, listeners
 * and addresses. Numbers that another process has by now are others on the wire, if
 * the peers were asked to wait (softhca_suspend_for()): they hear of that; the program
 * does not. Returns 0, or an errno value, and then it is suspended as before
 * and this can be called again:
 *	EINVAL		it is not suspended
 *	EADDRINUSE	another process has a listener of this one; or a queue pair
 *			number, and somebody who has that cannot be told of another
 *			one (docs/MIGRATION.md)
 *	EADDRNOTAVAIL	the host does not have an address that is in use
 *	or as for opening a device
 */
int softhca_resume(void);

/* Why the last of these two calls in this process has failed, in a sentence; "":
 * it has not. */
const char *softhca_migrate_why(void);

#ifdef __cplusplus
}
#endif

#endif
