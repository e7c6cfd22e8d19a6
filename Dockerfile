# One image for the server of a federation and for a site.
#
#   docker build --tag fedpg .
#   docker run --user "$(id -u)" -v "$PWD/plants:/data/plants" -p 8443:8443 fedpg serve plants
#   docker run --user "$(id -u)" -v "$PWD/site-0:/data/site-0" -v "$PWD/my_task.py:/data/my_task.py:ro" fedpg \
#       join site-0 --task my_task:make_environment
#
# The simulators (EnvPool, MuJoCo, Box2D) come with: docker build --build-arg EXTRAS=flower,simulators .
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml LICENSE MANIFEST.in ./
COPY docs/package.md docs/package.md
COPY src src
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
ARG EXTRAS=flower
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /wheels
RUN python -m pip install --no-cache-dir --constraint /tmp/constraints.txt "$(echo /wheels/fedpg-*.whl)[${EXTRAS}]" \
    && rm -r /wheels /tmp/constraints.txt \
    && useradd --create-home --uid 1000 fedpg \
    && mkdir /data && chown fedpg /data
# Compiled programs are kept here, whoever runs it; a volume at this place saves compiling after a restart.
ENV XDG_CACHE_HOME=/tmp/cache PYTHONUNBUFFERED=1
USER fedpg
WORKDIR /data
EXPOSE 8443
STOPSIGNAL SIGINT
ENTRYPOINT ["fedpg"]
CMD ["--help"]
