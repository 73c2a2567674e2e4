"""What cards report while they work: NVML and the amdgpu driver."""
