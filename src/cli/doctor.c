/*
 * doctor.c - softhca doctor: the list of checks, and how findings are printed
 */
#include "cli/doctor.h"
#include "base/lines.h"
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RPING_PORT 7174

static const char *const status_names[] = { "OK", "WARN", "FAIL" };

void doctor_add(char *buf, size_t size, const char *fmt, ...)
{
	size_t used = strlen(buf);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(buf + used, size - used, fmt, ap);
	va_end(ap);
}

bool doctor_has(const struct doctor *d, enum ibv_node_type type)
{
	bool any = !d->hcas.count;

	for (size_t i = 0; i < d->hcas.count; i++)
		any |= d->hcas.hca[i].node_type == type;
	return any;
}

void doctor_report(struct doctor *d, const char *name, struct finding *f)
{
	struct json *out = &d->out;

	make_printable(f->text);
	make_printable(f->fix);
	if (f->status > d->worst)
		d->worst = f->status;
	if (!d->json) {
		printf("%-5s %-12s %s\n", status_names[f->status], name,
		       f->text);
		if (f->fix[0])
			printf("      %-12s -> %s\n", "", f->fix);
		fflush(stdout);
		return;
	}
	json_begin(out, NULL, '{');
	json_string(out, "check", name);
	json_string(out, "status", status_names[f->status]);
	json_string(out, "text", f->text);
	if (f->fix[0])
		json_string(out, "fix", f->fix);
	json_end(out, '}');
}

int doctor_read_line(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t len;

	buf[0] = '\0';
	if (fd < 0)
		return -errno;
	len = read(fd, buf, size - 1);
	close(fd);
	if (len < 0)
		return -EIO;
	buf[len] = '\0';
	buf[strcspn(buf, "\n")] = '\0';
	return 0;
}

static error_t parse_doctor(int key, char *arg, struct argp_state *state)
{
	struct doctor *d = state->input;

	switch (key) {
	case 'j':
		d->json = true;
		return 0;
	case 'p':
		if (!*arg || *arg == '-') {
			argp_error(state, "--peer needs a host");
			return EINVAL;
		}
		d->peer = arg;
		return 0;
	case 'P': {
		char *end;
		unsigned long port = strtoul(arg, &end, 10);

		if (*arg < '0' || *arg > '9' || *end || !port || port > 65535) {
			argp_error(state, "--port needs a number, 1 to 65535");
			return EINVAL;
		}
		d->peer_port = (uint16_t)port;
		return 0;
	}
	case ARGP_KEY_ARGS:
		d->programs = state->argv + state->next;
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static void run_check(struct doctor *d, const char *name,
		      void (*fn)(struct doctor *d, struct finding *f))
{
	struct finding f = { .status = OK };

	fn(d, &f);
	doctor_report(d, name, &f);
}

static void check_all(struct doctor *d)
{
	run_check(d, "libraries", check_libraries);
	run_check(d, "threads", check_threads);
	run_check(d, "device", check_device);
	run_probe(d);
	run_check(d, "loader", check_loader);
	run_check(d, "shim", check_shim);
	run_check(d, "providers", check_providers);
	run_check(d, "rights", check_rights);
	run_check(d, "registry", check_registry);
	run_check(d, "files", check_tree);
	run_check(d, "shm", check_shm);
	run_check(d, "memlock", check_memlock);
	if (doctor_has(d, IBV_NODE_CA)) {
		run_check(d, "same-host", check_same_host);
		run_check(d, "port", check_port);
		run_check(d, "udp", check_udp);
		run_check(d, "buffers", check_buffers);
	}
	run_check(d, "criu", check_criu);
	if (d->hcas.count && doctor_has(d, IBV_NODE_RNIC))
		run_check(d, "descriptors", check_descriptors);
}

int cmd_doctor(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "json", 'j', NULL, 0, "Print JSON", 0 },
		{ "peer", 'p', "HOST", 0,
		  "Check whether RDMA packets reach this host and return", 0 },
		{ "port", 'P', "PORT", 0,
		  "With --peer, over iWARP: the TCP port on which a program "
		  "listens there (7174, rping's)",
		  0 },
		{ 0 },
	};
	static const struct argp argp = {
		.options = options,
		.parser = parse_doctor,
		.args_doc = "[PROGRAM...]",
		.doc = "Report what works here, what does not, and how to fix "
		       "it. With PROGRAMs or --peer, check those instead.\v"
		       "The exit status is 1 if a check says FAIL, else 0. "
		       "WARN marks what is slow, or does not work for some "
		       "programs.\n\n"
		       "Examples:\n"
		       "  softhca doctor\n"
		       "  softhca doctor --peer 10.0.0.2\n"
		       "  softhca run --iwarp -- softhca doctor --peer "
		       "10.0.0.2 "
		       "--port 7471\n"
		       "  softhca doctor /usr/bin/ib_write_bw ./my-program\n"
		       "  softhca doctor --json | jq '.checks[] | "
		       "select(.status != \"OK\")'",
	};
	struct doctor d = { .worst = OK, .peer_port = RPING_PORT };
	char *text = NULL;
	size_t i, size;

	cli_parse(&argp, argc, argv, EXIT_USAGE, NULL, &d);
	d.out = (struct json){ open_memstream(&text, &size), .lines = true };
	if (!d.out.f) {
		cli_say("%s", strerror(errno));
		return 1;
	}
	json_begin(&d.out, NULL, '{');
	json_string(&d.out, "version", SOFTHCA_VERSION);
	json_begin(&d.out, "checks", '[');
	libdir_find(d.libdir);
	if (d.programs && d.programs[0]) {
		for (i = 0; d.programs[i]; i++) {
			struct finding f = { .status = OK };

			check_program(&d, &f, d.programs[i]);
			doctor_report(&d, "program", &f);
		}
	}
	if (d.peer) {
		run_check(&d, "device", check_device);
		if (doctor_has(&d, IBV_NODE_CA))
			run_check(&d, "port", check_port);
		if (d.hcas.count)
			check_peer(&d);
	}
	if (!d.peer && !(d.programs && d.programs[0]))
		check_all(&d);
	json_end(&d.out, ']');
	json_string(&d.out, "status", status_names[d.worst]);
	json_end(&d.out, '}');
	if (fclose(d.out.f)) {
		cli_say("%s", strerror(errno));
		d.worst = FAIL;
	} else if (d.json) {
		fputs(text, stdout);
	}
	free(text);
	hca_list_free(&d.hcas);
	return fflush(stdout) || d.worst == FAIL ? 1 : 0;
}
