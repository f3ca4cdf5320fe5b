# One image for the processor and for NVIDIA GPUs. A GPU needs nothing in the image: its driver comes from the host through the
# NVIDIA container runtime (docker run --gpus all), and the program looks for it when it starts.
#
# Written without a container runtime at hand: this image was never built or run. Correct this line after the first build.
#
#   docker build -t fresco .
#   docker run -p 8188:8188 -v fresco:/data -e FRESCO_TOKEN_FILE=/data/token fresco

FROM docker.io/library/rust:1.95-slim-trixie AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package fresco

FROM docker.io/library/debian:trixie-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates curl \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 fresco \
    && install -d -o fresco /data
COPY --from=build /source/target/release/fresco /usr/local/bin/fresco
COPY starter /usr/local/share/fresco/starter
COPY LICENSE-MIT LICENSE-APACHE NOTICE /usr/local/share/doc/fresco/
COPY container/start.sh /usr/local/bin/start-fresco
# What the NVIDIA runtime gives to a container: computing, and the program that shows GPUs.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER fresco
VOLUME /data
EXPOSE 8188
# Running prompts have a minute to end when the container is stopped; docker and Kubernetes must wait longer than that.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD curl --fail --silent http://127.0.0.1:8188/api/health
ENTRYPOINT ["/usr/local/bin/start-fresco"]
CMD ["--drain", "60"]
