// Configurations of the inexact instructions by which they round to nearest even and keep denormals.
#pragma once

#include "kernel_operator.h"

static constexpr AscendC::DivConfig EXACT_DIVISION = {AscendC::DivAlgo::PRECISION_0ULP_FTZ_FALSE};
static constexpr AscendC::SqrtConfig EXACT_ROOT = {AscendC::SqrtAlgo::PRECISION_0ULP_FTZ_FALSE};
