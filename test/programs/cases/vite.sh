# needs: node /made/npm/node_modules/vite
# timeout: 180
. /programs/common.sh
ln -s /made/npm/node_modules node_modules
cat >package.json <<'P'
{"name":"app","private":true,"type":"module"}
P
echo '<div id="root"></div><script type="module" src="/main.jsx"></script>' >index.html
cat >main.jsx <<'P'
import React from 'react';
import { createRoot } from 'react-dom/client';
import './style.css';
createRoot(document.getElementById('root')).render(<p className="p">dormouse</p>);
P
echo '.p { color: red }' >style.css
echo "import react from '@vitejs/plugin-react'; export default { plugins: [react()], cacheDir: './kept' }" >vite.config.js
node node_modules/vite/bin/vite.js build >log 2>&1 || cat log
(cd dist && find . -type f | sort | xargs sha256sum)
node node_modules/vite/bin/vite.js --port 28086 --host 127.0.0.1 >log 2>&1 & server=$!
until_served 28086
get localhost:28086/main.jsx | grep -c dormouse
midst
sed -i 's/dormouse/mouse/' main.jsx
sleep 2
get localhost:28086/main.jsx | grep -c '"mouse"'
ends vite $server
