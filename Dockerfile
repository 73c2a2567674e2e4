# One image for all processes and gpusharectl; what runs is the command: see
# "Processes and folders" in docs/architecture.md. Any base with Python >= 3.11 and pip;
# give it by digest, BASE=NAME@sha256:..., where the same image must come out again.
ARG BASE=python:3.13-slim

FROM ${BASE} AS wheels
# An index of one's own, for builders that cannot reach the public one.
ARG PIP_INDEX_URL=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1
WORKDIR /build
COPY requirements requirements
# Their wheels ahead of our own code, because they change seldom and take the longest.
RUN python3 -m pip wheel --quiet --only-binary=:all: --wheel-dir=/wheels \
    --require-hashes -r requirements/runtime.txt -r requirements/build.txt

FROM wheels AS dependencies
# So that the same sources and wheels make the same layers.
ENV SOURCE_DATE_EPOCH=0 PYTHONHASHSEED=0
# Compiled now, because the root is read-only where it runs, but for the Kubernetes
# client's models, which are not used; and by content never checked, so that no file's
# time matters. The client for asyncio, 40 MB that are not used, is left out.
RUN python3 -m venv --without-pip /opt/gpushare \
 && python3 -m pip --python /opt/gpushare/bin/python install --quiet --no-compile \
    --no-index --find-links=/wheels --require-hashes -r requirements/runtime.txt \
 && rm -r /opt/gpushare/lib/python3*/site-packages/kubernetes/aio \
 && python3 -m compileall -q --invalidation-mode unchecked-hash \
    -x /kubernetes/client/models/ /opt/gpushare/lib \
 && find /opt/gpushare -exec touch --no-dereference --date=@0 {} +

# With a name, because a container that is given the number alone gets the group root.
RUN mkdir /accounts \
 && sed '$a gpushare:x:65532:65532::/:/usr/sbin/nologin' /etc/passwd > /accounts/passwd \
 && sed '$a gpushare:x:65532:' /etc/group > /accounts/group

FROM dependencies AS project
COPY . .
# The library of tier preload is compiled before, because the base has no compiler.
RUN if [ "$(uname -m)" = x86_64 ]; then \
        [ -f build/libvcuda.so.1 ] \
        || { echo "missing: build/libvcuda.so.1; cure: make preload" >&2; exit 1; }; \
        install -D -m 0644 build/libvcuda.so.1 /project/usr/lib/vcuda/libvcuda.so.1; \
    fi
RUN python3 -m pip wheel --quiet --no-deps --no-index --find-links=/wheels \
    --wheel-dir=/wheels . \
 && python3 -m pip --python /opt/gpushare/bin/python install --quiet --no-compile \
    --no-warn-script-location --no-index --no-deps --root=/project /wheels/gpushare_vcuda-*.whl \
 && PYTHONPATH="$(echo /project/opt/gpushare/lib/python3*/site-packages)" \
    python3 -m pip --python /opt/gpushare/bin/python check \
 && python3 -m compileall -q --invalidation-mode unchecked-hash \
    -s /project /project/opt/gpushare/lib \
 && find /project -exec touch --no-dereference --date=@0 {} +

FROM ${BASE}
COPY --from=dependencies /accounts /etc
COPY --from=dependencies /opt/gpushare /opt/gpushare
COPY --from=project /project /
ENV PATH=/opt/gpushare/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1
# By number, because Kubernetes' runAsNonRoot cannot look a name up.
USER 65532:65532
WORKDIR /
CMD ["gpusharectl"]
ARG VERSION
LABEL org.opencontainers.image.title=gpushare \
      org.opencontainers.image.version=${VERSION}
