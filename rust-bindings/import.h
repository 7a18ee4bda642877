/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Additions of a driver to the commands of uverbs, with which programs import a context, its
 * protection domains and its device memories (rdma/import.rs).
 */
#ifndef LINUX_RDMA_IMPORT_H
#define LINUX_RDMA_IMPORT_H

#include <rdma/ib_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <rdma/uverbs_ioctl.h>

/* The numbers of a driver's methods and attributes begin here. */
#define RDMA_IMPORT_FIRST (1U << UVERBS_ID_NS_SHIFT)

enum rdma_import_id {
	/* Attribute of UVERBS_METHOD_QUERY_CONTEXT. */
	RDMA_IMPORT_CONTEXT_RESPONSE = RDMA_IMPORT_FIRST,
	/* Method of UVERBS_OBJECT_PD, and its attribute. */
	RDMA_IMPORT_QUERY_PD = RDMA_IMPORT_FIRST,
	RDMA_IMPORT_PD_HANDLE = RDMA_IMPORT_FIRST,
	/* Method of UVERBS_OBJECT_DM, and its attributes. */
	RDMA_IMPORT_QUERY_DM = RDMA_IMPORT_FIRST,
	RDMA_IMPORT_DM_HANDLE = RDMA_IMPORT_FIRST,
	RDMA_IMPORT_DM_LENGTH,
};

extern const struct uapi_definition rdma_import_definitions[];

#endif
