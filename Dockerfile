# One file for both images. CPU (the default):
#   docker build -t kernd .
# CUDA: the devel image compiles, the base image of the same release runs.
#   docker build -t kernd:cuda --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 \
#     --build-arg RUNTIME=nvidia/cuda:13.0.1-base-ubuntu24.04 .
# Pin both by digest for a release. BASE and RUNTIME must be the same distribution, Debian 12 or Ubuntu 24.04.
ARG BASE=debian:12
ARG RUNTIME=debian:12-slim

FROM ${BASE} AS build
SHELL ["/bin/bash", "-eo", "pipefail", "-c"]
COPY deploy/packages.txt /src/deploy/packages.txt
RUN apt-get update \
    && awk '$1 == "build" { print $2 }' /src/deploy/packages.txt \
       | DEBIAN_FRONTEND=noninteractive xargs apt-get install -y --no-install-recommends \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
WORKDIR /src
RUN cmake --preset default -DKERND_BUILD_TESTS=OFF -DKERND_BUILD_BENCH=OFF \
    && cmake --build --preset default --target kernd kernctl \
    && strip build/bin/kernd build/bin/kernctl
# What the programs link tells which packages the runtime image needs, whatever the distribution calls them.
RUN ldd build/bin/kernd build/bin/kernctl | awk '/=> \// { print $3 }' | sort -u \
    | while read -r library; do dpkg-query -S "*/${library##*/}" | grep -v '^diversion ' | head -n 1; done \
    | cut -d: -f1 \
    | sort -u > build/runtime-packages.txt \
    && test -s build/runtime-packages.txt

FROM ${RUNTIME}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="kernd" \
      org.opencontainers.image.description="Matmul and attention over gRPC, on the GPU or the CPU" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /src/build/runtime-packages.txt /usr/share/doc/kernd/
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive xargs apt-get install -y --no-install-recommends \
       < /usr/share/doc/kernd/runtime-packages.txt \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/LICENSE /src/THIRD_PARTY.md /usr/share/doc/kernd/
# Owned by root: the service cannot change its own programs.
COPY --from=build --chmod=755 /src/build/bin/kernd /src/build/bin/kernctl /usr/local/bin/

# Numeric, so that Kubernetes can check runAsNonRoot.
USER 10001:10001
# `utility` lets NVML be read. A driver that is too old is reported by kernd itself, not by a container that never
# starts. All of it is ignored without a GPU.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_DISABLE_REQUIRE=true
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["/usr/local/bin/kernctl", "--endpoint", "127.0.0.1:50051", "health"]
ENTRYPOINT ["/usr/local/bin/kernd"]
# Inside a container loopback would reach nobody. There is no TLS: publish the ports to trusted networks only.
CMD ["--listen", "0.0.0.0:50051", "--http-listen", "0.0.0.0:9464"]
