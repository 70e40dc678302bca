// Device code outside sm_90a: loud, not empty.
#pragma once

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define NSA_ON_HOPPER 1
#else
#define NSA_ON_HOPPER 0
#endif
