/*
 * doctor.h - what the checks of softhca doctor share
 *
 * Each check tries the thing itself and fills one finding: OK; WARN for what
 * costs speed or keeps some programs out; FAIL for what keeps every program
 * out. text names the thing and the cause, fix the remedy.
 */
#ifndef SOFTHCA_CLI_DOCTOR_H
#define SOFTHCA_CLI_DOCTOR_H

#include "base/json.h"
#include "cli/hca.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum status { OK, WARN, FAIL };

/* What a check found. */
struct finding {
	enum status status;
	char text[1024];
	char fix[512];
};

struct doctor {
	bool json; /* --json */
	char **programs;
	const char *peer; /* --peer */
	uint16_t peer_port; /* --port: TCP's, of a program there (iWARP) */
	char libdir[PATH_MAX]; /* "": not found */
	struct hca_list hcas; /* filled by check_device() */
	bool port_taken; /* at some address, by check_port() */
	char probe[8192]; /* what a program sees, by run_probe() */
	int probe_err; /* why it could not look: an errno */
	struct json out; /* with --json: all that is found */
	enum status worst;
};

/* Whether there is a device of iWARP, or of RoCE, or none was found. */
bool doctor_has(const struct doctor *d, enum ibv_node_type type);

/* Appends to a text, as far as it fits. */
void doctor_add(char *buf, size_t size, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#define TEXT(f, ...) doctor_add((f)->text, sizeof((f)->text), __VA_ARGS__)
#define FIX(f, ...) doctor_add((f)->fix, sizeof((f)->fix), __VA_ARGS__)

void doctor_report(struct doctor *d, const char *name, struct finding *f);

/* The first line of a small file, or -errno. */
int doctor_read_line(const char *path, char *buf, size_t size);

/* doctor_libs.c: the libraries, and what a child under softhca run sees */
void check_libraries(struct doctor *d, struct finding *f);
void run_probe(struct doctor *d);
void check_loader(struct doctor *d, struct finding *f);
void check_shim(struct doctor *d, struct finding *f);

/* doctor_programs.c: other people's files */
void check_providers(struct doctor *d, struct finding *f);
void check_rights(struct doctor *d, struct finding *f);
void check_program(struct doctor *d, struct finding *f, const char *name);

/* doctor_host.c: what processes of this host share, and their limits */
void check_registry(struct doctor *d, struct finding *f);
void check_tree(struct doctor *d, struct finding *f);
void check_shm(struct doctor *d, struct finding *f);
void check_memlock(struct doctor *d, struct finding *f);
void check_threads(struct doctor *d, struct finding *f);
void check_criu(struct doctor *d, struct finding *f);

/* doctor_same_host.c: how processes of this host reach each other */
void check_same_host(struct doctor *d, struct finding *f);

/* doctor_net.c: addresses and sockets */
void check_device(struct doctor *d, struct finding *f);
void check_port(struct doctor *d, struct finding *f);
void check_udp(struct doctor *d, struct finding *f);
void check_buffers(struct doctor *d, struct finding *f);
void check_descriptors(struct doctor *d, struct finding *f);

/* doctor_peer.c: reports several findings */
void check_peer(struct doctor *d);

#endif
