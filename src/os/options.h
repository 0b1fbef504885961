/*
 * options.h - what a user sets: the options of softhca run, and their variables
 *
 * A row is a field of struct config (config.h), which config.c reads from the
 * variable, and an option that makes the tool set it (cli/job.c, which also
 * prints the help). So a new one is a row here, and a case in the code that
 * wants it; tests/clients/test_cli.py compares the man page and the completions
 * with the rows.
 *
 * O(field, type, reads, variable, option, argument, flags, sets, help)
 *     reads: config.c's function for the value; sets: job.c's, which checks what
 *     the user gives; flags: argp's.
 * V(field, type, reads, variable)
 *     has no option.
 */
#ifndef SOFTHCA_OS_OPTIONS_H
#define SOFTHCA_OS_OPTIONS_H

/* clang-format off */
#define SOFTHCA_OPTIONS(O, V) \
O(addr, const char *, string, "SOFTHCA_ADDR", "addr", "ADDRESS", 0, set_addr, \
  "Address of this host to use first: becomes GID index 0") \
O(devices, const char *, string, "SOFTHCA_DEVICES", "devices", "IF[,IF...]", 0, set_devices, \
  "One device per network interface: softhca0 on the first, and so on " \
  "(default: one device with the addresses of all)") \
O(rails, const char *, string, "SOFTHCA_RAILS", "rails", "N", 0, set_string, \
  "N devices, each with an address of its own: of the interfaces of --devices, " \
  "or 127.0.0.2 and up, within this host; a list of addresses: one device at each") \
O(names, const char *, names, "SOFTHCA_NAMES", "names", "PATTERN", 0, set_names, \
  "Name the devices so, such as mlx5_%d, instead of softhca0 and on") \
O(pci, const char *, pci, "SOFTHCA_PCI", "pci", "ADDRESS[,ADDRESS...]", 0, set_pci, \
  "Show programs the devices at these PCI addresses, such as 0000:17:00.0, " \
  "and further ones on the buses behind the last") \
O(numa, const char *, numa, "SOFTHCA_NUMA", "numa", "NODE[,NODE...]", 0, set_numa, \
  "Show programs the devices on these NUMA nodes: with two, the first half is " \
  "on the first") \
O(iwarp, enum iwarp, iwarp, "SOFTHCA_IWARP", "iwarp", "both|first", OPTION_ARG_OPTIONAL, set_iwarp, \
  "Show a device softiw0 that speaks iWARP (RDMA over TCP) instead of " \
  "softhca0; =both: beside it; =first: beside it, and rdma_cm connects by " \
  "iWARP") \
O(infiniband, enum infiniband, infiniband, "SOFTHCA_INFINIBAND", "infiniband", "both", OPTION_ARG_OPTIONAL, set_infiniband, \
  "Show a device softib0 of InfiniBand, with a LID, instead of softhca0; " \
  "=both: beside it") \
O(fabric, const char *, string, "SOFTHCA_FABRIC", "fabric", "FILE[@NODE]", 0, set_fabric, \
  "Programs see in the fabric of softib0 also the switches and hosts of FILE, " \
  "as ibnetdiscover prints them; with @NODE they stand at that node") \
O(rocev1, bool, bool, "SOFTHCA_ROCEV1", "rocev1", NULL, 0, set_flag, \
  "Offer RoCE v1 (Ethernet type 0x8915) as well: a second half of the GID " \
  "table, for who chooses an index there; needs CAP_NET_RAW") \
O(mpa_crc, bool, bool, "SOFTHCA_MPA_CRC", "mpa-crc", NULL, 0, set_flag, \
  "Protect iWARP's messages with CRC32C (default: where the peer wants it)") \
O(wire, bool, bool, "SOFTHCA_WIRE", "wire", NULL, 0, set_flag, \
  "Send packets to UDP port 4791 even within this host") \
O(same_host, enum same_host, same_host, "SOFTHCA_SAME_HOST", "same-host", "auto|copy|udp", 0, set_same_host, \
  "Reach processes of this host by shared memory and copies from and " \
  "to their memory (auto, the default), shared memory alone (copy), " \
  "or a private UDP port (udp)") \
O(rundir, const char *, string, "SOFTHCA_RUNDIR", "rundir", "DIR", 0, set_rundir, \
  "Find the processes of this host by DIR, also those of containers that " \
  "share it: they are reached by shared memory; see softhca(1)") \
O(loss, double, percent, "SOFTHCA_LOSS", "loss", "PERCENT", 0, set_loss, /* 0..1 */ \
  "Drop this share of the packets sent, at random") \
O(seed, uint64_t, u64, "SOFTHCA_SEED", "seed", "N", 0, set_u64, /* 0: from the clock */ \
  "Make --loss and --faults do the same every time") \
O(faults, const char *, string, "SOFTHCA_FAULTS", "faults", "FILE", 0, set_faults, \
  "Inject the faults of the script FILE: packets lost, late, duplicated " \
  "or changed, calls that fail, events; see softhca(1)") \
O(faults_log, const char *, string, "SOFTHCA_FAULTS_LOG", "faults-log", "FILE", 0, set_file, \
  "Log the faults made as a script that repeats them; %p in " \
  "the name becomes the process ID") \
O(check, const char *, string, "SOFTHCA_CHECK", "check", "OPTION,...", OPTION_ARG_OPTIONAL, set_check, \
  "Report on stderr latent bugs of the program; exit=N: a process " \
  "with findings ends with status N; json=FILE: append them to FILE, a line " \
  "of JSON each; leaks: objects never destroyed, too; see softhca(1)") \
O(pcap, const char *, string, "SOFTHCA_PCAP", "pcap", "FILE", 0, set_pcap, \
  "Record the packets of all processes in FILE (pcapng, for " \
  "Wireshark); %p in the name becomes the process ID, for one file " \
  "per process") \
O(trace, const char *, string, "SOFTHCA_TRACE", "trace", "DIR", 0, set_trace, \
  "Record events of all processes in DIR, one file per process, for " \
  "softhca trace DIR") \
O(explain, enum explain, explain, "SOFTHCA_EXPLAIN", "explain", "full", OPTION_ARG_OPTIONAL, set_explain, \
  "Print on stderr why completions and calls fail, and how queue pairs are " \
  "connected; =full: also where the program has posted what fails") \
O(migrate_secret, const char *, string, "SOFTHCA_MIGRATE_SECRET", "migrate-secret", "FILE", 0, set_secret, \
  "Ask peers on other hosts to wait while a process is moved, and heed them, " \
  "only where they have the same bytes as FILE; see softhca(1)") \
O(part_id, uint32_t, u32, "SOFTHCA_PART_ID", "part-id", "ID", 0, set_u32, \
  "vendor_part_id to report; perftest selects its posting method by it " \
  "(4129, a ConnectX-7: ibv_wr_* and inline data)") \
V(vendor_id, uint32_t, u32, "SOFTHCA_VENDOR_ID") \
V(tree, const char *, string, "SOFTHCA_SYSFS") /* what programs see of /sys */ \
V(cm_retries, uint8_t, retries, "SOFTHCA_CM_RETRIES") /* 1..15; 0: default */
/* clang-format on */

#endif
