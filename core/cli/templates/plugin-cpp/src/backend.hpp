/* What the files of this backend share. */
#ifndef BACKEND_HPP
#define BACKEND_HPP
#include "deepinfer_plugin.hpp"

/* State of the whole backend; handles of a vendor's library go here. */
struct DiBackend : deepinfer::Contained {
  using deepinfer::Contained::Contained;
};

/* Devices, memory, streams and events: device.cpp. */
DiRuntimeApi runtime_table();

/* Ops, one file each, named after it: ops/. */
void gather(const deepinfer::Call<DiArgsGatherV1> &);

#endif
