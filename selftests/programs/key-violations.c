// SPDX-License-Identifier: GPL-2.0
/*
 * key-violations DEVICE: prints the counts of invalid P_Keys and Q_Keys of the device's port.
 *
 * ibv_devinfo -v prints them too, but makes a system call for each of a thousand GIDs.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);

	for (int i = 0; argc == 2 && devices && devices[i]; i++) {
		struct ibv_context *context;
		struct ibv_port_attr port;

		if (strcmp(ibv_get_device_name(devices[i]), argv[1]))
			continue;
		context = ibv_open_device(devices[i]);
		if (!context || ibv_query_port(context, 1, &port))
			break;
		printf("%u %u\n", port.bad_pkey_cntr, port.qkey_viol_cntr);
		return 0;
	}
	fprintf(stderr, "key-violations: no answer from %s\n", argc == 2 ? argv[1] : "(no device)");
	return 1;
}
