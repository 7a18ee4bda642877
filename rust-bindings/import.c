// SPDX-License-Identifier: GPL-2.0
/*
 * Methods and attributes of uverbs, which only macros of C can define.
 */

#include "import.h"

#define UVERBS_MODULE_NAME rdma_import
#include <rdma/uverbs_named_ioctl.h>

ADD_UVERBS_ATTRIBUTES_SIMPLE(
	rdma_import_context, UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT,
	UVERBS_ATTR_PTR_OUT(RDMA_IMPORT_CONTEXT_RESPONSE, UVERBS_ATTR_MIN_SIZE(1), UA_MANDATORY));

/* Succeeds, because uverbs has found a protection domain with the handle. */
static int UVERBS_HANDLER(RDMA_IMPORT_QUERY_PD)(struct uverbs_attr_bundle *attrs)
{
	return 0;
}

DECLARE_UVERBS_NAMED_METHOD(
	RDMA_IMPORT_QUERY_PD,
	UVERBS_ATTR_IDR(RDMA_IMPORT_PD_HANDLE, UVERBS_OBJECT_PD, UVERBS_ACCESS_READ, UA_MANDATORY));

ADD_UVERBS_METHODS(rdma_import_pd, UVERBS_OBJECT_PD, &UVERBS_METHOD(RDMA_IMPORT_QUERY_PD));

/* Returns the length of a device memory, which uverbs keeps. */
static int UVERBS_HANDLER(RDMA_IMPORT_QUERY_DM)(struct uverbs_attr_bundle *attrs)
{
	const struct ib_dm *dm = uverbs_attr_get_obj(attrs, RDMA_IMPORT_DM_HANDLE);

	return uverbs_copy_to(attrs, RDMA_IMPORT_DM_LENGTH, &dm->length, sizeof(dm->length));
}

DECLARE_UVERBS_NAMED_METHOD(
	RDMA_IMPORT_QUERY_DM,
	UVERBS_ATTR_IDR(RDMA_IMPORT_DM_HANDLE, UVERBS_OBJECT_DM, UVERBS_ACCESS_READ, UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(RDMA_IMPORT_DM_LENGTH, UVERBS_ATTR_TYPE(u32), UA_MANDATORY));

ADD_UVERBS_METHODS(rdma_import_dm, UVERBS_OBJECT_DM, &UVERBS_METHOD(RDMA_IMPORT_QUERY_DM));

const struct uapi_definition rdma_import_definitions[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DEVICE, &rdma_import_context),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_PD, &rdma_import_pd),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DM, &rdma_import_dm),
	{},
};
