// Stand-in for the toolkit's header of this name: element types of the library calls, and the stream that they are given.
#pragma once

extern "C" {
typedef enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16BF = 14 } cudaDataType;
typedef struct CUstream_st* cudaStream_t;
}
