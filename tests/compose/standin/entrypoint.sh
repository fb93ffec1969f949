# As the official image does it: a variable such as discovery.type=single-node becomes a setting of the
# node, and the security plugin is disabled, left as it is, or given its demo certificates and a password.
options=()
while IFS='=' read -r name value; do
  if [[ "$name" =~ ^[a-z0-9_]+\.[a-z0-9_.]+$ && -n "$value" ]]; then
    options+=("-E$name=$value")
  fi
done < <(env)
if [ "$DISABLE_SECURITY_PLUGIN" = true ]; then
  options+=("-Eplugins.security.disabled=true")
elif [ "$DISABLE_INSTALL_DEMO_CONFIG" != true ]; then
  bash plugins/opensearch-security/tools/install_demo_configuration.sh -y -i -s || exit 1
fi
exec opensearch "${options[@]}"
