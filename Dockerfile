# One file for every image; three arguments choose.
#   CPU    docker build -t kernd .
#   CUDA   docker build -t kernd:cuda --build-arg PRESET=all-gpus \
#            --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 \
#            --build-arg RUNTIME=nvidia/cuda:13.0.1-base-ubuntu24.04 .
# BASE compiles, RUNTIME runs; both must be the same distribution, Debian 12 or Ubuntu 24.04. For a release pin both by
# digest, and give VERSION and REVISION.
ARG BASE=debian:12
ARG RUNTIME=debian:12-slim

FROM ${BASE} AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV DEBIAN_FRONTEND=noninteractive
COPY deploy/packages.txt /src/deploy/packages.txt
RUN --mount=type=tmpfs,target=/var/lib/apt/lists --mount=type=tmpfs,target=/var/cache/apt \
    apt-get update \
    && awk '$1 == "build" { print $2 }' /src/deploy/packages.txt | xargs apt-get install -y --no-install-recommends
COPY . /src
# A preset of CMakePresets.json: `all-gpus` fails where BASE has no CUDA toolkit, `cpu` ignores one.
ARG PRESET=cpu
ARG REVISION=unknown
# Warnings of a compiler that the project is not developed with are no reason to have no image. `install` strips the
# programs and takes out the search path of the build folder.
RUN --mount=type=cache,id=kernd-ccache,target=/root/.cache/ccache \
    cmake -S /src -B /build --preset "${PRESET}" -DKERND_REVISION="${REVISION}" \
      -DKERND_BUILD_TESTS=OFF -DKERND_BUILD_BENCH=OFF -DKERND_WERROR=OFF \
    && cmake --build /build --target kernd kernctl \
    && cmake --install /build --prefix /out --strip
# What the programs link names the packages of the runtime image, whatever this distribution calls them. A library is
# looked up below /usr/lib and /lib, which are one folder with two names.
RUN ldd /out/bin/kernd /out/bin/kernctl | awk '/=> \// && $3 !~ "^/out/" { print $3 }' | sort -u \
    | while read -r library; do dpkg-query -S "*${library#/usr}" | grep -v '^diversion ' | head -n 1; done \
    | cut -d: -f1 | sort -u > /out/runtime-packages.txt \
    && test -s /out/runtime-packages.txt
# cuBLASLt, half a gigabyte, is opened at run time: it comes along where kernd was built with CUDA, beside its kernels.
RUN mkdir -p /out/cuda /out/lib/kernd && cp -a /out/lib/kernd /out/cuda/ \
    && case "$(/out/bin/kernd --version)" in \
         *"CUDA none"*) ;; \
         *) cp -a /usr/local/cuda/lib64/libcublasLt.so.[0-9]* /out/cuda/ ;; \
       esac

FROM ${RUNTIME}
COPY --from=build /out/runtime-packages.txt /src/LICENSE /src/THIRD_PARTY.md /usr/share/doc/kernd/
COPY --from=build --chown=0:0 /out/cuda/ /usr/local/lib/
RUN --mount=type=tmpfs,target=/var/lib/apt/lists --mount=type=tmpfs,target=/var/cache/apt \
    --mount=type=tmpfs,target=/var/log \
    apt-get update \
    && DEBIAN_FRONTEND=noninteractive xargs apt-get install -y --no-install-recommends \
       < /usr/share/doc/kernd/runtime-packages.txt \
    && ldconfig
# Owned by root: the service cannot change its own programs.
COPY --from=build --chown=0:0 --chmod=755 /out/bin/kernd /out/bin/kernctl /usr/local/bin/

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="kernd" \
      org.opencontainers.image.description="Matmul and attention over gRPC, on the GPU or the CPU" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"

# In place of kernd's own defaults: inside a container loopback would reach nobody. There is no TLS: publish the ports
# to trusted networks only. As variables, so that arguments after the image's name add options and repeat none.
ENV KERND_LISTEN=0.0.0.0:50051 KERND_HTTP_LISTEN=0.0.0.0:9464
# `utility` lets NVML be read. A driver that is too old is reported by kernd itself, not by a container that never
# starts. All of it is ignored without a GPU.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_DISABLE_REQUIRE=true
# gRPC; metrics, /healthz and /readyz. There is no volume: kernd writes no file that it is not told to write.
EXPOSE 50051 9464
# Numeric, so that Kubernetes can check runAsNonRoot. Any other uid does as well.
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["/usr/local/bin/kernctl", "--timeout", "4s", "health"]
ENTRYPOINT ["/usr/local/bin/kernd"]
