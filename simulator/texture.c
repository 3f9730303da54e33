/* SPDX-License-Identifier: Apache-2.0
 *
 * Texture and surface objects: names for existing memory. No kernel reads them.
 */
#include "array.h"
#include "memory.h"

#include <stdlib.h>

struct view {
	uint32_t kind;
	CUDA_RESOURCE_DESC resource;
};

static bool in_memory(CUdeviceptr pointer, size_t bytes)
{
	return memory_contents(pointer, bytes, false) != NULL;
}

static CUresult resource_check(const CUDA_RESOURCE_DESC *resource)
{
	bool there = false;

	switch (resource->resType) {
	case CU_RESOURCE_TYPE_ARRAY:
		there = array_valid(resource->res.array.hArray);
		break;
	case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
		there = mipmap_valid(resource->res.mipmap.hMipmappedArray);
		break;
	case CU_RESOURCE_TYPE_LINEAR:
		there = in_memory(resource->res.linear.devPtr, resource->res.linear.sizeInBytes);
		break;
	case CU_RESOURCE_TYPE_PITCH2D:
		there = resource->res.pitch2D.height > 0 &&
			in_memory(resource->res.pitch2D.devPtr,
				resource->res.pitch2D.pitchInBytes *
						(resource->res.pitch2D.height - 1) +
					1);
		break;
	}
	return there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult view_new(
	unsigned long long *handle, enum object_kind kind, const CUDA_RESOURCE_DESC *resource)
{
	struct view *view;
	CUresult result;

	REQUIRE_CONTEXT(context);
	REQUIRE(handle && resource, CUDA_ERROR_INVALID_VALUE);
	result = resource_check(resource);
	if (result != CUDA_SUCCESS)
		return result;
	view = malloc(sizeof(*view));
	REQUIRE(view, CUDA_ERROR_OUT_OF_MEMORY);
	*view = (struct view){kind, *resource};
	*handle = (uintptr_t)view;
	return CUDA_SUCCESS;
}

static struct view *view_of(unsigned long long handle, enum object_kind kind)
{
	struct view *view = (struct view *)(uintptr_t)handle;

	return view && view->kind == kind ? view : NULL;
}

static CUresult view_free(unsigned long long handle, enum object_kind kind)
{
	struct view *view;

	REQUIRE_CONTEXT(context);
	view = view_of(handle, kind);
	REQUIRE(view, CUDA_ERROR_INVALID_VALUE);
	view->kind = 0;
	free(view);
	return CUDA_SUCCESS;
}

static CUresult view_resource(
	CUDA_RESOURCE_DESC *resource, unsigned long long handle, enum object_kind kind)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(resource && view_of(handle, kind), CUDA_ERROR_INVALID_VALUE);
	*resource = view_of(handle, kind)->resource;
	return CUDA_SUCCESS;
}

CUresult cuTexObjectCreate(CUtexObject *texture, const CUDA_RESOURCE_DESC *resource,
	const CUDA_TEXTURE_DESC *sampling, const CUDA_RESOURCE_VIEW_DESC *view)
{
	(void)view;
	REQUIRE(sampling, CUDA_ERROR_INVALID_VALUE);
	return view_new(texture, OBJECT_TEXTURE, resource);
}

CUresult cuTexObjectDestroy(CUtexObject texture)
{
	return view_free(texture, OBJECT_TEXTURE);
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUtexObject texture)
{
	return view_resource(resource, texture, OBJECT_TEXTURE);
}

/* Only arrays that were created for kernels to write to. */
CUresult cuSurfObjectCreate(CUsurfObject *surface, const CUDA_RESOURCE_DESC *resource)
{
	REQUIRE(resource && resource->resType == CU_RESOURCE_TYPE_ARRAY &&
			array_valid(resource->res.array.hArray) &&
			resource->res.array.hArray->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST,
		CUDA_ERROR_INVALID_VALUE);
	return view_new(surface, OBJECT_SURFACE, resource);
}

CUresult cuSurfObjectDestroy(CUsurfObject surface)
{
	return view_free(surface, OBJECT_SURFACE);
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUsurfObject surface)
{
	return view_resource(resource, surface, OBJECT_SURFACE);
}
